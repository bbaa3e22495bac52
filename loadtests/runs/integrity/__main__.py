"""`python -m loadtests.runs.integrity [--requests N] [--faults N] [--out FOLDER]`: faults in every part, all judged.

The page is written for a run of at least the default sizes, or wherever `--out` says. An interrupted run resumes with
the same options on the same commit. Exit status: 0; 1 if a breach was found; 2 if the run could not be made.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from loadtests.report.progress import Say
from loadtests.report.result import Result
from loadtests.runs.integrity.parts import Sizes, parts_of
from loadtests.runs.integrity.report import result
from loadtests.runs.integrity.run import run
from loadtests.runs.judged import here, judged, record_of, resumed, typed

NAME = "integrity"
USUAL = Sizes()
BOUNDS: dict[str, tuple[float, float, str]] = {
    "requests": (0, 1_000_000, "requests among the faults of every component"),
    "faults": (0, 3_000, "faults of every component"),
    "kills": (0, 1_000, "kills of workers, one at a time"),
    "nonces": (0, 100_000, "requests before byzantine workers"),
    "leavers": (0, 24_000, "clients that disconnect, at 12 stages"),
    "seed": (0, 2**31, "seed of the order of everything"),
    "per_s": (1, 1_000, "requests a second"),
}


def main() -> int:
    sizes, out = _arguments()

    async def played(say: Say) -> Result:
        record = resumed(record_of(NAME), {"sizes": asdict(sizes), **here()}, say)
        return result(await run(sizes, record, say))

    given, usual = (
        {name.replace("_", "-"): value for name, value in asdict(each).items()} for each in (sizes, USUAL)
    )  # fmt: skip
    takes_s = sum(part.takes_s for part in parts_of(sizes))
    return judged(
        played, name=NAME, command=typed(NAME, given, usual), takes_s=takes_s, out=out, whole=sizes.whole
    )  # fmt: skip


def _arguments() -> tuple[Sizes, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.integrity", description="Does each request end once, with its own answer?"
    )
    for name, (_, _, what) in BOUNDS.items():
        usual = getattr(USUAL, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(usual), default=usual, help=f"{what} (default {usual:,g})"
        )
    parser.add_argument("--out", type=Path, help="write integrity.md into this folder, however long the run was")
    given = vars(parser.parse_args())
    out: Path | None = given.pop("out")
    for name, (low, high, _) in BOUNDS.items():
        if not low <= given[name] <= high:
            parser.error(f"--{name.replace('_', '-')}: {low:g} to {high:,g} were expected")
    if given["faults"] and not given["requests"]:
        parser.error("--faults needs --requests")
    return Sizes(**given), out


if __name__ == "__main__":
    raise SystemExit(main())
