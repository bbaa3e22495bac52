"""`python -m loadtests.bench.steps [--out PAGE]`: count, and write the page, in under a minute."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from loadtests.bench.observing.measure import EVERYTHING
from loadtests.bench.profile import AREAS
from loadtests.paths import RESULTS
from loadtests.report.machine import describe

PAGE = RESULTS / "steps.md"
KINDS = ("answers", "refusals")
REST = "the rest"


def main(out: Annotated[Path, typer.Option(help="The page.")] = PAGE) -> None:
    """How many steps of the interpreter a request takes in the router, and what for."""
    whole = {kind: steps(kind) for kind in KINDS}
    silent = {kind: sum(steps(kind, EVERYTHING).values()) for kind in KINDS}
    out.write_text(text := page(whole, silent, describe()), encoding="utf-8")
    typer.echo(text)


def steps(kind: str, silenced: tuple[str, ...] = ()) -> dict[str, float]:
    """Steps a request by file, counted in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "steps.json"
        words = ["-m", "loadtests.bench.steps.counted", kind, str(out), *filter(None, [",".join(silenced)])]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, timeout=120)
        found: dict[str, float] = json.loads(out.read_text())
        return found


def by_area(of_file: Mapping[str, float]) -> dict[str, float]:
    """The same areas as the profile's."""
    areas: dict[str, float] = {}
    for file, count in of_file.items():
        area = next((name for part, name in AREAS.items() if part in f"services/{file}"), REST)
        areas[area] = areas.get(area, 0.0) + count
    return areas


def page(whole: Mapping[str, Mapping[str, float]], silent: Mapping[str, float], where: str) -> str:
    """The page as Markdown."""
    total = {kind: sum(of_file.values()) for kind, of_file in whole.items()}
    areas = {kind: by_area(of_file) for kind, of_file in whole.items()}
    names = sorted(
        areas["answers"].keys() | areas["refusals"].keys(), key=lambda name: -areas["answers"].get(name, 0.0)
    )
    lines = [
        "# Steps of a request",
        "",
        f"`python -m loadtests.bench.steps` on {where}.",
        "",
        "A step is one instruction of the interpreter in the router's own code, counted over 320 requests of 32",
        "clients after a warm-up. A busy machine does not change the count, so it shows a change of a percent that no",
        "clock would. It does not see what C code does within a step, system calls, or the processor's caches:",
        "[profile.md](profile.md) has the time.",
        "",
        f"| steps a request | {' | '.join(whole)} |",
        f"|---|{'---:|' * len(whole)}",
        *(f"| {name} | {' | '.join(f'{areas[kind].get(name, 0.0):,.0f}' for kind in whole)} |" for name in names),
        f"| **in all** | {' | '.join(f'**{total[kind]:,.0f}**' for kind in whole)} |",
        f"| without metrics, log and journal | {' | '.join(f'{silent[kind]:,.0f}' for kind in whole)} |",
        "",
        "Observation (metrics, log and journal) is "
        + " and ".join(f"{1 - silent[kind] / total[kind]:.1%} of the steps of {kind}" for kind in whole)
        + ".",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
