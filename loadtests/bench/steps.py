"""Bytecode instructions of a request in the router: a count that does not depend on the load of the machine."""

from __future__ import annotations

import json
import os
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
A step is one bytecode instruction in the router's own code, counted over {REQUESTS} requests of {CONNECTIONS} clients
after a warm-up, on a virtual clock and without sockets. The load of the machine does not change the count, so it shows
changes of a percent that a clock would not. It does not see work inside C code, system calls, or the processor's
caches: [profile.md](profile.md) has the time.
"""


def measure(say: Say) -> Result:
    whole = {kind: steps(kind) for kind in STATUS}
    say("all steps are counted; next without observation")
    return result(whole, {kind: sum(steps(kind, EVERYTHING).values()) for kind in STATUS})


def steps(kind: str, silenced: tuple[str, ...] = ()) -> dict[str, float]:
    """Steps a request by file, counted in a separate process, because silencing cannot be undone."""
    arguments = ["-m", "loadtests.bench.counted", kind, *filter(None, [",".join(silenced)])]
    sources = {**os.environ, "WEIR_CODE": "python"}
    done = subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.PIPE, timeout=WITHIN_S, env=sources
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def by_area(of_file: Mapping[str, float]) -> dict[str, float]:
    areas: dict[str, float] = {}
    for file, count in of_file.items():
        area = next((name for part, name in AREAS.items() if part in f"services/{file}"), REST)
        areas[area] = areas.get(area, 0.0) + count
    return areas


def result(whole: Mapping[str, Mapping[str, float]], silent: Mapping[str, float]) -> Result:
    total = {kind: sum(of_file.values()) for kind, of_file in whole.items()}
    areas = {kind: by_area(of_file) for kind, of_file in whole.items()}
    names = sorted(
        areas["answers"].keys() | areas["refusals"].keys(), key=lambda name: -areas["answers"].get(name, 0.0)
    )
    rows = [(name, *(f"{areas[kind].get(name, 0.0):,.0f}" for kind in whole)) for name in names]
    rows.append(("**total**", *(f"**{total[kind]:,.0f}**" for kind in whole)))
    rows.append(("without metrics, log and journal", *(f"{silent[kind]:,.0f}" for kind in whole)))
    observation = {kind: 1 - silent[kind] / total[kind] for kind in whole}
    shares = " and ".join(f"{share:.1%} of the steps of {kind}" for kind, share in observation.items())
    figures = {
        kind: [Figure("steps a request", total[kind], "steps"), Figure("observation", observation[kind], "%")]
        for kind in whole
    }
    columns = ("steps a request", *(f"{kind}:" for kind in whole))
    blocks = [ABOUT, table(columns, rows), f"Observation (metrics, log and journal) is {shares}."]
    return Result("Steps of a request", figures, blocks)
