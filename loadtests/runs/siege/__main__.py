"""`python -m loadtests.runs.siege [--only ROW]... [--seconds S] [--publish]`: an honest tenant beside attackers.

`--publish` writes siege.md and siege.json into docs/results; `--out` names another folder. An interrupted run resumes
with the same options on the same commit. Exit status: 0; 1 if a target was missed; 2 if the run could not be made.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from loadtests.report.console import say
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.judged import here, judged, record_of, resumed, typed
from loadtests.runs.siege.attackers import MAX_SECONDS
from loadtests.runs.siege.attacks import ATTACKS
from loadtests.runs.siege.judging import result
from loadtests.runs.siege.run import WORDS, Wanted, play

NAME = "siege"
MAX_ATTACKERS = max(attack.count for attack in ATTACKS)


def main() -> int:
    given = _arguments()
    if given.list:
        say("\n".join(f"{attack.name:<16} {attack.count:>6,} {attack.about}" for attack in ATTACKS))
        return 0
    usual = Wanted()
    wanted = Wanted(tuple(given.only or usual.rows), given.seconds, given.limit)

    async def made(say: Say) -> Result:
        record = resumed(record_of(NAME), {"wanted": asdict(wanted), **here()}, say)
        return result(await play(wanted, record, say), seconds=wanted.seconds, **WORDS)

    options = {"only": wanted.rows, "seconds": wanted.seconds, "limit": wanted.limit}
    command = typed(NAME, options, {"only": usual.rows, "seconds": usual.seconds, "limit": usual.limit})
    return judged(made, name=NAME, command=command, takes_s=wanted.takes_s, out=given.out, whole=given.publish)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.siege", description="Honest clients beside attackers."
    )
    names = [attack.name for attack in ATTACKS]
    parser.add_argument("--only", action="append", choices=names, metavar="ROW", help=f"one of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, default=Wanted.seconds, help="how long each row lasts (default 60)")
    parser.add_argument("--limit", type=int, default=Wanted.limit, help="limit of the attackers in a row")
    parser.add_argument("--publish", action="store_true", help="write siege.md and siege.json into docs/results")
    parser.add_argument("--out", type=Path, help="write them into this folder")
    parser.add_argument("--list", action="store_true", help="list the rows")
    given = parser.parse_args()
    for name, low, high in (("seconds", 1, MAX_SECONDS), ("limit", 1, MAX_ATTACKERS)):
        if not low <= getattr(given, name) <= high:
            parser.error(f"--{name}: {low:g} to {high:,g} were expected")
    return given


if __name__ == "__main__":
    raise SystemExit(main())
