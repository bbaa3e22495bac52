"""`python -m loadtests.nonces [--requests N] [--out FOLDER]`: ask, trouble the workers, judge, write nonces.md.

The page is written when the whole 20,000 were asked, or wherever `--out` says. Exit status 1 where a client could have
believed a wrong answer, or was left without one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.fire import machine
from loadtests.fire.console import say
from loadtests.fire.processes import ROOT, run
from loadtests.nonces import report
from loadtests.nonces.run import LEAST_REQUESTS, MOST_REQUESTS, play

RESULTS = ROOT / "docs" / "results"
ALL = 20_000
SHORT = 1_000


def main() -> int:
    wanted = _arguments()
    on = machine.describe()
    result = run(play(wanted.requests, wanted.seed, say))
    say("\n".join(report.lines(result)))
    folder = wanted.out or (RESULTS if wanted.requests >= ALL else None)
    if folder is not None:
        more = "" if wanted.requests == ALL else f" --requests {wanted.requests}"
        folder.mkdir(parents=True, exist_ok=True)
        page = report.page(result, command=f"python -m loadtests.nonces{more}", machine=on)
        (folder / "nonces.md").write_text(page, encoding="utf-8")
        say(f"Written to {folder}/nonces.md.")
    return 0 if result.honest else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.nonces", description="Whose answer is it?")
    parser.add_argument("--requests", type=int, default=ALL, help=f"how many (default {ALL:,}; {SHORT:,} in the tests)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write nonces.md into this folder, however many were asked")
    wanted = parser.parse_args()
    if not LEAST_REQUESTS <= wanted.requests <= MOST_REQUESTS:
        parser.error(f"--requests: {LEAST_REQUESTS} to {MOST_REQUESTS:,} were expected")
    return wanted


if __name__ == "__main__":
    raise SystemExit(main())
