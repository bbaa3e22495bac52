"""`python -m loadtests.runs.matrix [--only SCENARIO]... [--policy POLICY]... [--url URL] [--quick] [--fresh]`

Plays what is not yet kept, and writes the page when the series is whole, or wherever `--out` says. A missed target is a
result, not a failure: the exit status is 0, and 1 where something could not be played.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from loadtests.cluster import cpu
from loadtests.cluster.processes import run
from loadtests.cluster.stand import Stand
from loadtests.paths import ROOT
from loadtests.report import machine
from loadtests.report.console import say
from loadtests.report.console import why as why_of
from loadtests.runs.judged import RESULTS
from loadtests.runs.matrix import kept, page
from loadtests.runs.matrix.cell import Series
from loadtests.runs.matrix.kept import Kept
from loadtests.runs.matrix.playing import Job, Playing, clock, planned_s
from loadtests.runs.matrix.policies import POLICIES, available
from loadtests.runs.matrix.scenarios import SCENARIOS
from loadtests.runs.matrix.stack import embedded, running
from loadtests.runs.matrix.writing import publish
from loadtests.runs.peers.gateways import haproxy, haproxy_version
from loadtests.target import refusal

KEPT = ROOT / "out" / "report"
QUICK_PACE = 0.12
QUICK_ELSEWHERE = ("baseline", "burst")  # with --quick, what is played under the other policies as well
WORKERS = "http://127.0.0.1:8010,http://127.0.0.1:8011"


def main() -> int:
    wanted = _arguments()
    if wanted.list:
        say("\n".join(f"{each.name:<16} {each.seconds:>3.0f} s  {each.question}" for each in SCENARIOS))
        return 0
    if wanted.url and (why := refusal(wanted.url)):
        raise SystemExit(f"--url: {why}")
    folder = wanted.out or KEPT
    path = haproxy()
    fresh = Series(kept.subject(), wanted.quick, haproxy_version(path) if path else "")
    store = Kept(folder / ("quick.json" if wanted.quick else "series.json"), fresh, say, forget=wanted.fresh)
    jobs = _jobs(wanted, store)
    try:
        if jobs:
            run(_play(wanted, store, jobs))
    except (OSError, RuntimeError, ExceptionGroup) as error:
        say(f"The stack does not stand: {why_of(error)}")
        return 1
    return _finish(wanted, store)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.matrix", description="The whole series, as one page."
    )
    names, policies = [each.name for each in SCENARIOS], [each.name for each in POLICIES]
    parser.add_argument("--only", action="append", choices=names, metavar="SCENARIO", help="play it, kept or not")
    parser.add_argument("--policy", action="append", choices=policies, help="play this one only; may be repeated")
    parser.add_argument("--url", help="a stack that runs, instead of one that is started for this")
    parser.add_argument("--workers", default=WORKERS, help="its workers; metrics listen 1000 above each port")
    parser.add_argument(
        "--quick", action="store_true", help="everything much shorter: tests the machinery, not the router"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--out", type=Path, help="write into this folder, whatever was played")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    return parser.parse_args()


def _jobs(wanted: argparse.Namespace, store: Kept) -> list[Job]:
    """What is to be played: what is missing, or what was asked for."""
    wished = [
        (scenario, policy)
        for scenario in SCENARIOS
        for policy in available()
        if (not wanted.only or scenario.name in wanted.only)
        and (not wanted.policy or policy.name in wanted.policy)
        and (not wanted.quick or wanted.only or policy is POLICIES[0] or scenario.name in QUICK_ELSEWHERE)
    ]
    if wanted.only:
        return wished
    jobs = [(scenario, policy) for scenario, policy in wished if not store.has(f"{scenario.name} {policy.name}")]
    if len(jobs) < len(wished):
        say(f"{len(wished) - len(jobs)} of {len(wished)} were measured before and are kept; --fresh plays all again.")
    return jobs


async def _play(wanted: argparse.Namespace, store: Kept, jobs: Sequence[Job]) -> None:
    if warned := await cpu.warning():
        say(warned)
    pace = QUICK_PACE if wanted.quick else 1.0
    say(f"{len(jobs)} runs, about {clock(planned_s(jobs, pace))}; each is kept as it ends.")
    async with _stand(wanted) as stand:
        store.series.given = f"{wanted.url}, {stand.shape}" if wanted.url else ""
        await Playing(stand, jobs, say, store.keep, machine.describe(), pace).all()


@asynccontextmanager
async def _stand(wanted: argparse.Namespace) -> AsyncIterator[Stand]:
    if wanted.url is None:
        say("Starting the stack ...")
        async with embedded() as stand:
            yield stand
        return
    with tempfile.TemporaryDirectory(prefix="weir-report-") as folder:
        yield await running(wanted.url, [each.strip() for each in wanted.workers.split(",")], Path(folder))


def _finish(wanted: argparse.Namespace, store: Kept) -> int:
    series = store.series
    say("\n" + page.summary(series))
    missing = [
        f"{scenario.name} ({policy.title})"
        for scenario in SCENARIOS
        for policy in available()
        if series.cell(scenario.name, policy.name) is None
    ]
    if wanted.out is not None:
        publish(series, wanted.out, None)
    elif missing or wanted.quick:
        say(f"The page is not written: {', '.join(missing) or 'a quick series proves nothing'}.")
    else:
        publish(series, RESULTS, ROOT / "README.md")
    return 1 if any(cell.fault for cell in series.cells.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
