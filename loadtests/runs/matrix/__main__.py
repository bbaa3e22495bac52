"""`python -m loadtests.runs.matrix [SCENARIO...] [--against SUBJECT,...] [--url URL] [--quick] [--fresh]`

Plays scenarios on real processes with every subject that this machine has or can install. Without a name, all scenarios
of the published page are played; results of an earlier run on the same code are kept. The page is written when it is
complete. Exit status: 0, also with missed targets; 1 if something could not be played; 2 if the command is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from loadtests.cluster import cpu
from loadtests.cluster.processes import run
from loadtests.cluster.stand import Stand
from loadtests.paths import RESULTS, ROOT
from loadtests.report import machine
from loadtests.report.console import say
from loadtests.report.progress import progress
from loadtests.runs.matrix import environments, given, kept, page, promised, simulated, writing
from loadtests.runs.matrix.cases import BESIDE, SERIES, Case, case
from loadtests.runs.matrix.cell import Series
from loadtests.runs.matrix.kept import Kept
from loadtests.runs.matrix.playing import Job, Playing, Stands, clock, planned_s, workers_of
from loadtests.runs.matrix.subjects import SUBJECTS, WEIR, Subject, versions
from loadtests.scenarios.changes import Changes
from loadtests.simulator.runs import cores
from loadtests.target import refusal
from services.cli.errors import LabError

KEPT = ROOT / "out" / "matrix"
QUICK_PACE = 0.12
QUICK_ELSEWHERE = ("baseline", "burst")  # the scenarios of other subjects than Weir with --quick
WORKERS = "http://127.0.0.1:8010,http://127.0.0.1:8011"


def main() -> int:
    wanted = _arguments()
    if wanted.list:
        _list()
        return 0
    try:
        changes = Changes(trace=wanted.trace, sets=tuple(wanted.set))
        cases = {each.name: each for each in (case(name, changes) for name in wanted.scenarios or SERIES)}
        subjects = [] if wanted.simulated else _here(_named(wanted.against), given_stack=bool(wanted.url))
    except LabError as error:
        print("\n".join([error.message, *error.notes]), file=sys.stderr)
        return 2
    if wanted.own and (len(wanted.scenarios) != 1 or wanted.quick or wanted.url or wanted.set):
        print("--own: one SCENARIO, and neither --quick nor --url nor --set", file=sys.stderr)
        return 2
    if wanted.url and (why := refusal(wanted.url)):
        print(f"--url: {why}", file=sys.stderr)
        return 2
    folder = wanted.out or (ROOT / "out" / "played" if wanted.set or wanted.trace else KEPT)
    fresh = Series(kept.code(), wanted.quick, versions(), wanted.url or "")
    store = Kept(folder / ("quick.json" if wanted.quick else "series.json"), fresh, say, forget=wanted.fresh)
    jobs = [] if wanted.simulated else _jobs(wanted, store, list(cases.values()), subjects)
    if jobs:
        run(_play(wanted, store, jobs))
    if wanted.simulated or wanted.own or not (wanted.scenarios or wanted.url or wanted.quick):
        _simulate(store, list(cases))
        if not wanted.scenarios:
            promised.play(store, [wanted.trace] if wanted.trace else [], cores(), say)
    return _finish(wanted, store, cases, subjects)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.matrix", description="Scenarios on real processes, by Weir and by others."
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="play it even if it is kept; default: all")
    parser.add_argument("--trace", type=Path, help="the file to replay, for scenarios that replay one")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change it for this run")
    parser.add_argument("--against", default="", help="subjects, separated by commas; default: all")
    parser.add_argument("--url", help="use a running router instead of starting one")
    parser.add_argument("--workers", default=WORKERS, help="its workers; metrics listen 1000 above each port")
    parser.add_argument(
        "--quick", action="store_true", help="everything much shorter: tests the machinery, not the router"
    )
    parser.add_argument("--simulated", action="store_true", help="play in the simulator only")
    parser.add_argument("--fresh", action="store_true", help="ignore earlier results")
    parser.add_argument("--out", type=Path, help="write into this folder, whatever was played")
    parser.add_argument("--own", action="store_true", help="write the one SCENARIO's own page into docs/results")
    parser.add_argument("--list", action="store_true", help="list scenarios and subjects")
    return parser.parse_args()


def _list() -> None:
    say("\n".join(f"{name:<18} {case(name).scenario.duration_s:>4.0f} s  {case(name).scenario.question}"
                  for name in (*SERIES, *BESIDE)))  # fmt: skip
    say("\n" + "\n".join(f"{each.name:<18} {each.about}" for each in SUBJECTS))


def _named(against: str) -> list[Subject]:
    names = [name.strip() for name in against.split(",") if name.strip()]
    known = {subject.name: subject for subject in SUBJECTS}
    for name in names:
        if name not in known:
            raise LabError(f"--against: there is no {name}; choose from {', '.join(known)}.")
    return [known[name] for name in names] or list(SUBJECTS)


def _here(subjects: Sequence[Subject], *, given_stack: bool) -> list[Subject]:
    """The subjects that can run, after installing what pip can. A given stack has only its own router."""
    if given_stack:
        return [subject for subject in subjects if subject.is_router and subject.cuts]
    for subject in subjects:
        if subject.package:
            environments.make(subject.package, say)
        if missing := subject.missing():
            say(f"Left out: {subject.title}, since {missing}.")
    return [subject for subject in subjects if not subject.missing()]


def _jobs(wanted: argparse.Namespace, store: Kept, cases: Sequence[Case], subjects: Sequence[Subject]) -> list[Job]:
    candidates = [
        (each, subject)
        for each in cases
        for subject in filter(each.is_for, subjects)
        if not wanted.quick or wanted.scenarios or subject is WEIR or each.name in QUICK_ELSEWHERE
    ]
    if wanted.scenarios:
        return candidates
    jobs = [(each, subject) for each, subject in candidates if not store.has(f"{each.name} {subject.name}")]
    if len(jobs) < len(candidates):
        say(f"{len(candidates) - len(jobs)} of {len(candidates)} are kept from before; --fresh plays all again.")
    return jobs


async def _play(wanted: argparse.Namespace, store: Kept, jobs: Sequence[Job]) -> None:
    if warned := await cpu.warning():
        say(warned)
    pace = QUICK_PACE if wanted.quick else 1.0
    say(f"{len(jobs)} runs, about {clock(planned_s(jobs, pace))}; each is kept as it ends.")
    stands: Stands = partial(_given, wanted.url, wanted.workers) if wanted.url else workers_of
    playing = Playing(stands, jobs, say, store.keep, machine.describe(), pace)
    with progress("matrix", lambda taken_s: playing.takes_s, far=lambda: playing.doing):
        await playing.all()


def _simulate(store: Kept, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in store.series.simulated and simulated.can(name)]
    for number, name in enumerate(missing, start=1):
        say(f"In the simulator, {number} of {len(missing)}: {name}")
        store.keep_simulated(name, simulated.simulate(name, cores()))


@asynccontextmanager
async def _given(url: str, workers: str, case: Case) -> AsyncIterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="weir-matrix-") as folder:
        yield await given.running(url, [each.strip() for each in workers.split(",")], Path(folder))


def _finish(
    wanted: argparse.Namespace, store: Kept, cases: dict[str, Case], subjects: Sequence[Subject]
) -> int:  # fmt: skip
    series = store.series
    say("\n" + page.summary(series, cases))
    missing = [
        f"{each.name} ({subject.title})"
        for each in cases.values()
        for subject in filter(each.is_for, subjects)
        if series.cell(each.name, subject.name) is None
    ]
    if wanted.own and not missing:
        writing.publish_own(series, next(iter(cases.values())), wanted.out or RESULTS)
    elif wanted.out is not None:
        writing.publish(series, cases, wanted.out, None)
    elif wanted.scenarios or wanted.against or wanted.url or wanted.set or wanted.simulated:
        say("The page is written where everything is played, or with --out.")
    elif missing or wanted.quick:
        say(f"The page is not written: {', '.join(missing) or 'a quick series has no meaningful figures'}.")
    else:
        writing.publish(series, cases, RESULTS, ROOT / "README.md")
    return 1 if any(cell.fault for cell in series.cells.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
