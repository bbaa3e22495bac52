"""`python -m loadtests.runs.rolling [--restarts N] [--out FOLDER]`: restart routers behind HAProxy, count what is lost.

The page rolling.md is written after the whole 50 restarts, or wherever `--out` says. Exit status: 0; 1 where a request
was lost or a router did not leave by itself; 2 where the run could not be made, as without HAProxy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.report.console import say
from loadtests.runs.judged import judged, typed
from loadtests.runs.rolling import report
from loadtests.runs.rolling.run import MOST_RESTARTS, play

ALL = 50
SEED = 1


def main() -> int:
    wanted = _arguments()
    given = {"restarts": wanted.restarts, "seed": wanted.seed}
    command = typed("rolling", given, {"restarts": ALL, "seed": SEED})
    playing, whole = play(wanted.restarts, wanted.seed, say), wanted.restarts >= ALL
    return judged(playing, report, name="rolling", command=command, out=wanted.out, whole=whole)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.rolling", description="Is a request lost?")
    parser.add_argument("--restarts", type=int, default=ALL, help=f"how many, of one router after the other ({ALL})")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, help="write rolling.md into this folder, however many there were")
    wanted = parser.parse_args()
    if not 1 <= wanted.restarts <= MOST_RESTARTS:
        parser.error(f"--restarts: 1 to {MOST_RESTARTS} were expected")
    return wanted


if __name__ == "__main__":
    raise SystemExit(main())
