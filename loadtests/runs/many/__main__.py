"""`python -m loadtests.runs.many [--quick] [--seed N] [--out FOLDER]`: several routers among faults of their network.

Needs root, `ip` and `iptables`; everything is in network namespaces of its own, which are removed at the end. The page
is written for a whole run, or wherever `--out` says; the logs of all processes are in out/many. Exit status: 0; 1 if a
target was missed; 2 if the run could not be made, and why.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from loadtests.paths import ROOT
from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.judged import judged
from loadtests.runs.many.addresses import MAX_OF_A_KIND
from loadtests.runs.many.play import play
from loadtests.runs.many.report import result
from loadtests.runs.many.sizes import FULL, QUICK, Sizes

NAME = "many"
FOLDER = ROOT / "out" / NAME
MAX_FAULTS, MAX_SEED = 600, 2**31


def main() -> int:
    sizes, out, command = _arguments()

    async def played(say: Say) -> Result:
        return result(await play(sizes, FOLDER, say), sizes)

    return judged(played, name=NAME, command=command, takes_s=sizes.takes_s, out=out, whole=sizes.is_whole)


def _arguments() -> tuple[Sizes, Path | None, str]:
    """The sizes, the folder for the page, and the command that repeats the run."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.many", description="Do several routers hold their promises among faults?"
    )
    parser.add_argument("--quick", action="store_true", help="two routers, half a minute: the machinery only")
    parser.add_argument("--faults", type=int, help=f"faults (default {FULL.faults}; {QUICK.faults} if quick)")
    parser.add_argument("--routers", type=int, help="routers (default 4; 2 if quick); 1 for what one alone does")
    parser.add_argument("--seed", type=int, default=FULL.seed, help="of arrivals and of the order of faults")
    parser.add_argument("--out", type=Path, help=f"write {NAME}.md into this folder, however long the run was")
    given = parser.parse_args()
    usual = QUICK if given.quick else FULL
    faults = usual.faults if given.faults is None else given.faults
    routers = usual.routers if given.routers is None else given.routers
    if not 1 <= faults <= MAX_FAULTS or not 1 <= routers <= MAX_OF_A_KIND or not 0 <= given.seed <= MAX_SEED:
        parser.error(
            f"--faults: 1 to {MAX_FAULTS}, --routers: 1 to {MAX_OF_A_KIND}, --seed: 0 to {MAX_SEED} were expected"
        )
    words = ["--quick"] if given.quick else []
    words += [f"--faults {faults}"] if faults != usual.faults else []
    words += [f"--routers {routers}"] if routers != usual.routers else []
    words += [f"--seed {given.seed}"] if given.seed != usual.seed else []
    command = f'make {NAME} ARGS="{" ".join(words)}"' if words else f"make {NAME}"
    return replace(usual.scaled(faults), routers=routers, seed=given.seed), given.out, command


if __name__ == "__main__":
    raise SystemExit(main())
