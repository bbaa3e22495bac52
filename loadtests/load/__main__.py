"""`python -m loadtests.load PLAN.toml --url http://127.0.0.1:8000 [--trace FILE] [--json FILE] [--rows FILE]`

`--describe` prints what would be sent and sends nothing. Exit status: 0; 2 for an unusable plan or address; 3 if the
generator itself was late too often.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path

import uvloop

from loadtests.load import describe
from loadtests.load.client import Client
from loadtests.load.figures import figures
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Plan
from loadtests.load.planfile import load
from loadtests.load.show import lines
from loadtests.report.progress import SAY_EVERY_S, Say, progress
from loadtests.target import refusal

BAD_PLAN = 2
TOO_LATE = 3


def main() -> int:
    wanted = _arguments()
    try:
        plan = load(wanted.plan, wanted.trace)
        if wanted.describe:
            return _describe(wanted, plan)
        if why := refusal(wanted.url):
            raise ValueError(f"--url: {why}")
        client = Client(plan, wanted.url)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_PLAN
    began_cpu_s = time.process_time()
    with progress("load", plan.seconds) as report:
        ledger = uvloop.run(client.run(partial(_progress, report, plan.seconds)))
    cpu_s = time.process_time() - began_cpu_s
    found = figures(plan, ledger)
    cost = f"generator cost: {cpu_s:.2f} s of a core in {plan.seconds:g} s, for {ledger.tries.total():,} tries"
    sys.stdout.write("\n".join([*lines(found), cost]) + "\n")
    _write(wanted, plan, {"figures": found.as_dict(), "generator_cpu_s": cpu_s}, ledger)
    return 0 if found.valid else TOO_LATE


def _describe(wanted: argparse.Namespace, plan: Plan) -> int:
    found = describe.describe(plan)
    sys.stdout.write("\n".join(describe.lines(found)) + "\n")
    _write(wanted, plan, {"description": found.as_dict()}, Ledger())
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.load", description="Open-loop load from a plan.")
    parser.add_argument("plan", type=Path, help="a plan in TOML; see loadtests/README.md")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="this machine or the compose network's router")
    parser.add_argument("--trace", type=Path, help="replay this file in place of the plan's own recording")
    parser.add_argument("--describe", action="store_true", help="print what would be sent, and send nothing")
    parser.add_argument("--json", type=Path, help="write the figures here, or the description")
    parser.add_argument("--rows", type=Path, help="write the ledger here, one JSON object a line")
    return parser.parse_args()


def _progress(report: Say, seconds: float, now_s: float, ledger: Ledger) -> None:
    if int(now_s) % SAY_EVERY_S == 0 and now_s >= 1:
        left_s = max(0.0, seconds - now_s)
        report(f"{left_s:.0f} s left; {len(ledger.rows):,} sent, {ledger.open:,} open")


def _write(wanted: argparse.Namespace, plan: Plan, found: dict[str, object], ledger: Ledger) -> None:
    if wanted.json is not None:
        document = {"route": plan.route, "seed": plan.seed, "seconds": plan.seconds, **found}
        wanted.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if wanted.rows is not None:
        with wanted.rows.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row.as_dict()) + "\n" for row in ledger.rows)


if __name__ == "__main__":
    raise SystemExit(main())
