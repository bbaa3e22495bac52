"""`python -m loadtests.runs.integrity [--requests N] [--faults N] [--out FOLDER]`: break everything, judge all.

The page is written when the whole run was asked for, or wherever `--out` says. A run that was interrupted goes on where
it was if it is begun again with the same options. Exit status: 0; 1 where something happened that must never be; 2
where the run itself could not be made.
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
    "requests": (0, 1_000_000, "among the faults of every part"),
    "faults": (0, 3_000, "of every part"),
    "kills": (0, 1_000, "of workers, one at a time"),
    "nonces": (0, 100_000, "requests before evil workers"),
    "leavers": (0, 24_000, "clients that disconnect, at 12 stages"),
    "seed": (0, 2**31, "of the order of all that happens"),
    "per_s": (1, 1_000, "requests a second"),
}


def main() -> int:
    sizes, out = _arguments()

    async def told(say: Say) -> Result:
        record = resumed(record_of(NAME), {"sizes": asdict(sizes), **here()}, say)
        return result(await run(sizes, record, say))

    given, usual = (
        {name.replace("_", "-"): value for name, value in asdict(each).items()} for each in (sizes, USUAL)
    )  # fmt: skip
    takes_s = sum(part.takes_s for part in parts_of(sizes))
    return judged(
        told, name=NAME, command=typed(NAME, given, usual), takes_s=takes_s, out=out, whole=sizes.whole
    )  # fmt: skip


def _arguments() -> tuple[Sizes, Path | None]:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.integrity", description="Has every request one end, and is it its own?"
    )
    for name, (_, _, what) in BOUNDS.items():
        usual = getattr(USUAL, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(usual), default=usual, help=f"{what} (default {usual:,g})"
        )
    parser.add_argument("--out", type=Path, help="write integrity.md into this folder, however long the run was")
    given = vars(parser.parse_args())
    out: Path | None = given.pop("out")
    for name, (least, most, _) in BOUNDS.items():
        if not least <= given[name] <= most:
            parser.error(f"--{name.replace('_', '-')}: {least:g} to {most:,g} were expected")
    if given["faults"] and not given["requests"]:
        parser.error("--faults: there are none without --requests")
    return Sizes(**given), out


if __name__ == "__main__":
    raise SystemExit(main())
