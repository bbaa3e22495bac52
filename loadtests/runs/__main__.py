"""`python -m loadtests.runs SCENARIO --on STAGE [--against NAME,...] [...]`: play one scenario on one stage.

    simulator   the scheduler alone on a virtual clock, beside other policies (`--against`)
    world       router, workers and HTTP on a virtual clock, with every rule judged
    processes   real processes under an open loop, beside other subjects (`--against`)
    locust      a running stack, under simulated people

Other options are passed to the stage's own command. A scenario's file names the stages that cannot play it, and why.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from loadtests.scenarios.model import find, load_raw
from loadtests.scenarios.stages import for_stage
from services.cli.errors import LabError

Arguments = Callable[[str, Sequence[str]], list[str]]


def _simulator(scenario: str, against: Sequence[str]) -> list[str]:
    policies = [word for name in against for word in ("--policy", name)]
    return ["-m", "loadtests.simulator", scenario, *policies]


def _world(scenario: str, against: Sequence[str]) -> list[str]:
    if against:
        raise LabError("--against: the world plays Weir alone.")
    return ["-m", "loadtests.world", "--scenario", scenario]


def _processes(scenario: str, against: Sequence[str]) -> list[str]:
    return ["-m", "loadtests.runs.matrix", scenario, *(["--against", ",".join(against)] if against else [])]


def _locust(scenario: str, against: Sequence[str]) -> list[str]:
    if against:
        raise LabError("--against: Locust loads the running stack, whatever it is.")
    os.environ["SCENARIO"] = scenario
    return ["-m", "locust", "-f", "loadtests/locustfile.py", "--headless", "--only-summary", "--loglevel", "WARNING"]


STAGES: dict[str, Arguments] = {
    "simulator": _simulator,
    "world": _world,
    "processes": _processes,
    "locust": _locust,
}


def main() -> int:
    """Replaces this process by the stage's command. Returns 2 if the scenario or an option is wrong."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs", description="One scenario, on one stage.")
    parser.add_argument("scenario", help="a name of loadtests/scenarios, or a file")
    parser.add_argument("--on", choices=STAGES, default="processes", help="the stage")
    parser.add_argument("--against", default="", help="policies or subjects, with commas between them")
    wanted, more = parser.parse_known_args()
    try:
        for_stage(load_raw(find(wanted.scenario)), wanted.on, wanted.scenario)
        names = [name.strip() for name in wanted.against.split(",") if name.strip()]
        arguments = STAGES[wanted.on](wanted.scenario, names)
    except LabError as error:
        print("\n".join([error.message, *error.notes]), file=sys.stderr)
        return 2
    os.execv(sys.executable, [sys.executable, *arguments, *more])


if __name__ == "__main__":
    raise SystemExit(main())
