"""`python -m loadtests.runs.nonces [--requests N] [--out FOLDER]`: ask, trouble the workers, judge, write nonces.md.

The page is written when the whole 20,000 were asked, or wherever `--out` says. Exit status: 0; 1 where a client could
have believed a wrong answer, or was left without one; 2 where the run itself could not be made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.report.console import say
from loadtests.runs.judged import judged, typed
from loadtests.runs.nonces import report
from loadtests.runs.nonces.run import LEAST_REQUESTS, MOST_REQUESTS, play

ALL = 20_000
SHORT = 1_000
SEED = 1


def main() -> int:
    wanted = _arguments()
    playing, whole = play(wanted.requests, wanted.seed, say), wanted.requests >= ALL
    return judged(playing, report, name="nonces", command=_command(wanted), out=wanted.out, whole=whole)


def _command(wanted: argparse.Namespace) -> str:
    given = {"requests": wanted.requests, "seed": wanted.seed}
    return typed("nonces", given, {"requests": ALL, "seed": SEED})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.nonces", description="Whose answer is it?")
    parser.add_argument("--requests", type=int, default=ALL, help=f"how many (default {ALL:,}; {SHORT:,} in the tests)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, help="write nonces.md into this folder, however many were asked")
    wanted = parser.parse_args()
    if not LEAST_REQUESTS <= wanted.requests <= MOST_REQUESTS:
        parser.error(f"--requests: {LEAST_REQUESTS} to {MOST_REQUESTS:,} were expected")
    return wanted


if __name__ == "__main__":
    raise SystemExit(main())
