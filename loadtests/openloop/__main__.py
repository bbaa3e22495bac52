"""`python -m loadtests.openloop PLAN.toml --url http://127.0.0.1:8000 [--json FILE] [--rows FILE]`

Exit status: 0; 2 for a plan or an address that cannot be used; 3 if the generator itself was too late too often.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import uvloop

from loadtests.openloop.client import Client
from loadtests.openloop.figures import figures
from loadtests.openloop.ledger import Ledger
from loadtests.openloop.plan import Plan, load
from loadtests.openloop.show import lines
from loadtests.target import refusal

BAD_PLAN = 2
TOO_LATE = 3


def main() -> int:
    wanted = _arguments()
    try:
        plan = load(wanted.plan)
        if why := refusal(wanted.url):
            raise ValueError(f"--url: {why}")
        client = Client(plan, wanted.url)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_PLAN
    ledger = uvloop.run(client.run(_progress if sys.stderr.isatty() else None))
    found = figures(plan, ledger)
    sys.stdout.write("\n".join(lines(found)) + "\n")
    _write(wanted, plan, found.as_dict(), ledger)
    return 0 if found.valid else TOO_LATE


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.openloop", description="Open-loop load from a plan.")
    parser.add_argument("plan", type=Path, help="a plan in TOML; see loadtests/README.md")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="this machine or the compose network's router")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rows", type=Path, help="write the ledger here, one JSON object a line")
    return parser.parse_args()


def _progress(now_s: float, ledger: Ledger) -> None:
    sys.stderr.write(f"\r{now_s:6.0f} s  {len(ledger.rows):,} sent, {ledger.open:,} open ")


def _write(wanted: argparse.Namespace, plan: Plan, found: dict[str, object], ledger: Ledger) -> None:
    if wanted.json is not None:
        told = {"route": plan.route, "seed": plan.seed, "seconds": plan.seconds, "figures": found}
        wanted.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if wanted.rows is not None:
        with wanted.rows.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row.as_dict()) + "\n" for row in ledger.rows)


if __name__ == "__main__":
    raise SystemExit(main())
