"""`python -m loadtests.world --seeds 100` plays seeds and judges them; `--seed 7 --trace` plays one and prints its
events.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtests.cluster.loop import BEGINS_S
from loadtests.report.machine import describe
from loadtests.report.record import OtherRun
from loadtests.scenarios.changes import Changes
from loadtests.scenarios.stages import on_stage
from loadtests.world.play import Result, play, play_scenario
from loadtests.world.run import Record, many
from loadtests.world.staging import made_of, targets
from services.cli.errors import LabError


def main() -> int:
    """Exit status: 1 for a broken promise, 2 if nothing could be played."""
    wanted = _arguments()
    if wanted.scenario is not None:
        return _scenario(wanted.scenario, tuple(wanted.set), trace=wanted.trace)
    if wanted.seed is not None:
        return _one(wanted.seed, wanted.size, trace=wanted.trace)
    try:
        return _many(wanted)
    except OtherRun as error:
        print(error, file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.world", description="The whole system in virtual time, judged, seed by seed."
    )
    parser.add_argument("--seeds", type=_number, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=0, help="start no further seed after this many seconds")
    parser.add_argument("--size", type=_number, default=1000, help="approximate requests per seed")
    parser.add_argument("--jobs", type=_number, default=1, help="parallel processes")
    parser.add_argument("--record", type=Path, help="file of results, which a later run continues")
    parser.add_argument("--seed", type=int, help="play only this seed")
    parser.add_argument("--scenario", metavar="NAME", help="a scenario file, instead of seeds")
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="with --scenario: change a value"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed or --scenario: print events and log lines")
    return parser.parse_args()


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _one(seed: int, size: int, *, trace: bool) -> int:
    result = play(seed, _print_event if trace else None, size=size)
    _print_result(result)
    return 1 if result.violations else 0


def _scenario(name: str, sets: tuple[str, ...], *, trace: bool) -> int:
    """Play and judge a scenario file. A missed target of the file is printed and is no broken promise."""
    try:
        file = on_stage(name, "world", Changes(sets=sets))
        made = made_of(file)
    except LabError as error:
        print("\n".join([error.message, *error.notes]), file=sys.stderr)
        return 2
    result = play_scenario(made, _print_event if trace else None)
    _print_result(result)
    for group, share in result.on_time.items():
        print(f"  {group}: {share:.2%} answered on time")
    for figure in targets(file, result):
        print(f"  {figure.verdict.strip('*'):<7}{figure.name} {figure.shown}  {figure.wanted} {figure.note}".rstrip())
    return 1 if result.violations else 0


def _print_event(now: float, who: str, what: str, detail: str) -> None:
    print(f"{now - BEGINS_S:11.6f}  {who:<10} {what:<10} {detail}")


def _print_result(result: Result) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(result.counts.items()))
    print(f"seed {result.seed}: {result.requests} requests ({counts}), {result.faults} faults, {result.digest}")
    for violation in result.violations:
        print(f"  BROKEN {violation}")


def _many(wanted: argparse.Namespace) -> int:
    machine = describe()
    code = machine.rsplit(",", 1)[0]  # without the day, which may change during the run
    record = Record(wanted.record, size=wanted.size, machine=code) if wanted.record else None

    def report(result: Result) -> None:
        _print_result(result)
        print(f"  again: make world SEED={result.seed} TRACE=1", flush=True)

    seeds = range(wanted.first, wanted.first + wanted.seeds)
    totals = many(seeds, size=wanted.size, seconds=wanted.seconds, jobs=wanted.jobs, kept=record, report=report)
    print(f"{totals}\n{machine}")
    return 1 if totals.broken else 0


if __name__ == "__main__":
    sys.exit(main())
