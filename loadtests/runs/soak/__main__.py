"""`python -m loadtests.runs.soak [--minutes N] [--out FOLDER]`: load the stack for N minutes, and see whether it grows.

The page soak.md is written where it lasted ten minutes or more, or wherever `--out` says. Exit status: 0; 1 where
something grew, or an answer was wrong; 2 where the run itself could not be made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.report.console import say
from loadtests.runs.judged import judged
from loadtests.runs.soak import report
from loadtests.runs.soak.run import MOST_MINUTES, play

MINUTES = 10.0
LEAST_MINUTES = 0.1


def main() -> int:
    minutes, out = _arguments()
    command = f"make soak MINUTES={minutes:g}"
    return judged(play(minutes, say), report, name="soak", command=command, out=out, whole=minutes >= MINUTES)


def _arguments() -> tuple[float, Path | None]:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.soak", description="What grows under load?")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long (default {MINUTES:g})")
    parser.add_argument("--out", type=Path, help="write soak.md into this folder, however long it lasted")
    given = parser.parse_args()
    if not LEAST_MINUTES <= given.minutes <= MOST_MINUTES:
        parser.error(f"--minutes: {LEAST_MINUTES:g} to {MOST_MINUTES:g} were expected")
    return given.minutes, given.out


if __name__ == "__main__":
    raise SystemExit(main())
