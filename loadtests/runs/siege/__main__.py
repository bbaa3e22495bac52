"""`python -m loadtests.runs.siege [--only ROW]... [--seconds S] [--publish]`: an honest tenant beside attackers.

siege.md and siege.json are written into docs/results with `--publish`, or wherever `--out` says. Exit status: 0; 1
where a target was missed; 2 where the run could not be made.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtests.report.console import say
from loadtests.runs.judged import judged
from loadtests.runs.siege import report
from loadtests.runs.siege.attackers import MOST_SECONDS
from loadtests.runs.siege.attacks import ATTACKS
from loadtests.runs.siege.run import Wanted, play

MOST_ATTACKERS = max(attack.count for attack in ATTACKS)


def main() -> int:
    given = _arguments()
    if given.list:
        say("\n".join(f"{attack.name:<16} {attack.count:>6,} {attack.about}" for attack in ATTACKS))
        return 0
    wanted = Wanted(tuple(given.only or Wanted.rows), given.seconds, given.most)
    return judged(
        play(wanted, say), report, name="siege", command=_command(given), out=given.out, whole=given.publish,
        data=report.data,
    )  # fmt: skip


def _command(given: argparse.Namespace) -> str:
    options = [f"--only {name}" for name in given.only or ()]
    options += [f"--seconds {given.seconds:g}"] if given.seconds != Wanted.seconds else []
    options += [f"--most {given.most}"] if given.most != Wanted.most else []
    return f'make siege ARGS="{" ".join(options)}"' if options else "make siege"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.siege", description="Honest clients beside attackers."
    )
    names = [attack.name for attack in ATTACKS]
    parser.add_argument("--only", action="append", choices=names, metavar="ROW", help=f"one of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=Wanted.seconds, help="how long each row lasts (default 60)")
    parser.add_argument("--most", type=int, default=Wanted.most, help="no row has more attackers than so many")
    parser.add_argument("--publish", action="store_true", help="write siege.md and siege.json into docs/results")
    parser.add_argument("--out", type=Path, help="write them into this folder")
    parser.add_argument("--list", action="store_true", help="list the rows")
    given = parser.parse_args()
    for name, least, most in (("seconds", 1, MOST_SECONDS), ("most", 1, MOST_ATTACKERS)):
        if not least <= getattr(given, name) <= most:
            parser.error(f"--{name}: {least:g} to {most:,g} were expected")
    return given


if __name__ == "__main__":
    raise SystemExit(main())
