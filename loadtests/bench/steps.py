"""How many steps of the interpreter a request takes in the router: a count that a busy machine does not change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from loadtests.bench.counted import REQUESTS, STATUS
from loadtests.bench.profile import AREAS
from loadtests.bench.silenced import EVERYTHING
from loadtests.bench.stand import CONNECTIONS
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Result

REST = "the rest"
WITHIN_S = 120
ABOUT = f"""\
A step is one instruction of the interpreter in the router's own code, counted over {REQUESTS} requests of {CONNECTIONS}
clients after a warm-up, on a virtual clock and without sockets. A busy machine does not change the count, so it shows a
change of a percent that no clock would. It does not see what C code does within a step, system calls, or the
processor's caches: [profile.md](profile.md) has the time.
"""


def measure(say: Say) -> Result:
    """Count."""
    whole = {kind: steps(kind) for kind in STATUS}
    say("all steps are counted; now those without observation")
    return result(whole, {kind: sum(steps(kind, EVERYTHING).values()) for kind in STATUS})


def steps(kind: str, silenced: tuple[str, ...] = ()) -> dict[str, float]:
    """Steps a request by file, counted in a process of its own: what is silenced there is silent for good."""
    words = ["-m", "loadtests.bench.counted", kind, *filter(None, [",".join(silenced)])]
    done = subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, timeout=WITHIN_S)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def by_area(of_file: Mapping[str, float]) -> dict[str, float]:
    """The same areas as the profile's."""
    areas: dict[str, float] = {}
    for file, count in of_file.items():
        area = next((name for part, name in AREAS.items() if part in f"services/{file}"), REST)
        areas[area] = areas.get(area, 0.0) + count
    return areas


def result(whole: Mapping[str, Mapping[str, float]], silent: Mapping[str, float]) -> Result:
    """As a page. `whole` has the steps of each kind of request by file, `silent` those without observation."""
    total = {kind: sum(of_file.values()) for kind, of_file in whole.items()}
    areas = {kind: by_area(of_file) for kind, of_file in whole.items()}
    names = sorted(
        areas["answers"].keys() | areas["refusals"].keys(), key=lambda name: -areas["answers"].get(name, 0.0)
    )
    rows = [(name, *(f"{areas[kind].get(name, 0.0):,.0f}" for kind in whole)) for name in names]
    rows.append(("**in all**", *(f"**{total[kind]:,.0f}**" for kind in whole)))
    rows.append(("without metrics, log and journal", *(f"{silent[kind]:,.0f}" for kind in whole)))
    observation = {kind: 1 - silent[kind] / total[kind] for kind in whole}
    told = " and ".join(f"{share:.1%} of the steps of {kind}" for kind, share in observation.items())
    figures = {
        kind: [Figure("steps a request", total[kind], "steps"), Figure("observation", observation[kind], "%")]
        for kind in whole
    }
    columns = ("steps a request", *(f"{kind}:" for kind in whole))
    blocks = [ABOUT, table(columns, rows), f"Observation (metrics, log and journal) is {told}."]
    return Result("Steps of a request", figures, blocks)
