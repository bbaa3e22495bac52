"""`python -m loadtests.runs.chaos [--requests N] [--faults N] [--out FOLDER]`: break everything under load.

The page is written when the whole 20,000 were asked among 60 faults, or wherever `--out` says. Exit status: 0; 1 where
something happened that must never be; 2 where the run itself could not be made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.report.console import say
from loadtests.runs.chaos import report
from loadtests.runs.chaos.run import LEAST_REQUESTS, MOST_FAULTS, MOST_REQUESTS, PER_S, Wanted, play
from loadtests.runs.judged import judged, typed

REQUESTS, FAULTS = 20_000, 60
MOST_PER_S = 1000.0


def main() -> int:
    wanted, out = _arguments()
    whole = wanted.requests >= REQUESTS and wanted.faults >= FAULTS
    return judged(play(wanted, say), report, name="chaos", command=_command(wanted), out=out, whole=whole)


def _command(wanted: Wanted) -> str:
    given = {"requests": wanted.requests, "faults": wanted.faults, "seed": wanted.seed, "per-s": f"{wanted.per_s:g}"}
    return typed("chaos", given, {"requests": REQUESTS, "faults": FAULTS, "seed": 1, "per-s": f"{PER_S:g}"})


def _arguments() -> tuple[Wanted, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.chaos", description="Every part broken, under load."
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"how many (default {REQUESTS:,})")
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"how many meanwhile (default {FAULTS})")
    parser.add_argument("--per-s", type=float, default=PER_S, help=f"requests a second (default {PER_S:g})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write chaos.md into this folder, however long the run was")
    given = parser.parse_args()
    for name, least, most in (
        ("requests", LEAST_REQUESTS, MOST_REQUESTS), ("faults", 0, MOST_FAULTS), ("per_s", 1, MOST_PER_S),
    ):  # fmt: skip
        if not least <= getattr(given, name) <= most:
            parser.error(f"--{name.replace('_', '-')}: {least:g} to {most:,g} were expected")
    return Wanted(given.requests, given.faults, given.seed, given.per_s), given.out


if __name__ == "__main__":
    raise SystemExit(main())
