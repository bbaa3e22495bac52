"""The cost of the console: journal entries in every request, one frame, and fifty viewers of a full router.

The entries are the difference of the best batches with the journal and without. A frame has 16 tenants with queued
requests and 64 busy workers. The viewers are over sockets, without other load and while the router rejects requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from loadtests.bench.stand import Router, Workers, chat, standing
from loadtests.cluster.usage import cpu_s
from loadtests.load.closed import hold
from loadtests.load.rates import Same, at_rates
from loadtests.report.figure import Figure, at_most, median
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services.core.account import QueueBounds, TenantSpec
from services.core.choices import SchedulerSettings
from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.scheduler import Scheduler
from services.router.console.feed import Feed
from services.router.deciding.dispatcher import Dispatcher
from services.router.parsing.slo import RequestSLO
from services.router.request import InferenceRequest
from services.router.telemetry.journal import Journal
from services.router.telemetry.metrics import RouterMetrics
from services.router.tenancy.tenants import Tenant
from services.router.upstreams.call import Upstream
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.drain import Drain
from services.runtime.telemetry import new_registry

TENANTS, WORKERS, QUEUED = 16, 64, 192
SLO = RequestSLO(120_000.0, 120_000.0)
VIEWERS = 50
REFUSED = 500.0
ROUNDS = 3
BATCHES, CALLS = 7, 5000
SETTINGS = {
    "MAX_INFLIGHT": str(WORKERS), "MAX_QUEUE_SIZE": str(QUEUED), "DEFAULT_SLO_MS": "600000",
    "MAX_DEADLINE_MS": "600000", "MAX_LAB_TENANTS": "20", "PROBE_INTERVAL_S": "30",
}  # fmt: skip


# ---- in this process


class _NoUpstream:
    def close(self) -> None:
        pass


def _worker(number: int) -> Worker:
    spec = WorkerSpec(
        name=f"worker-{number}", kind="openai", url="http://127.0.0.1:1", models=["hang"], slots=1, lookahead=0
    )
    upstream: Upstream = _NoUpstream()  # type: ignore[assignment]  # only the worker's state is used
    worker = Worker(spec, upstream)
    worker.health.answered(0.0, needed=True)
    return worker


def _request(number: int, now: float, of: str = "r") -> InferenceRequest:
    tenant = f"tenant-{number % TENANTS}"
    return InferenceRequest(
        f"{of}-{number}", tenant, now, now + 120.0, 40, 64, account=Tenant(tenant), slo=SLO, model="hang",
        admitted=True, queue_depth=0,
    )  # fmt: skip


class _NoJournal(Journal):
    def admitted(self, request: InferenceRequest) -> None:
        pass

    def ended(self, request: InferenceRequest, failure: object, now: float) -> None:
        pass


def _entries_us(journal: Journal) -> float:
    spent_s = []
    for _ in range(BATCHES):
        began = time.process_time()
        for number in range(CALLS):
            request = _request(number, float(number))
            journal.admitted(request)
            request.outcome = Outcome.SERVED
            journal.ended(request, None, float(number))
        spent_s.append(time.process_time() - began)
    return min(spent_s) / CALLS * 1e6


async def _frame() -> tuple[float, float, int]:
    """(milliseconds to make a frame, milliseconds to encode it, bytes)."""
    loop, rng, bounds = asyncio.get_running_loop(), Random(1), QueueBounds(10_000)
    scheduler = Scheduler(SchedulerSettings(bounds, TenantSpec("", bounds)), rng.random)
    dispatcher = Dispatcher(scheduler, Fleet([_worker(n) for n in range(WORKERS)], rng), InflightCap(WORKERS), rng)
    dispatcher.capacity_changed()
    journal, metrics = Journal(), RouterMetrics(new_registry())
    for number in range(WORKERS + QUEUED):
        request = _request(number, now := loop.time())
        assert dispatcher.admit(now, request) is None
        journal.admitted(request)
    for number in range(500):
        request = _request(number, loop.time(), "s")
        request.outcome = Outcome.SERVED
        journal.ended(request, None, loop.time())
    feed, encoder = Feed(dispatcher, metrics, journal, Drain()), msgspec.json.Encoder()
    made, encoded = [], []
    for _ in range(100):
        began = time.process_time()
        frame = feed.frame(loop.time())
        between = time.process_time()
        data = encoder.encode(frame)
        made.append(between - began)
        encoded.append(time.process_time() - between)
    dispatcher.drain()
    return sorted(made)[50] * 1000, sorted(encoded)[50] * 1000, len(data)


# ---- over sockets


class Viewer(asyncio.Protocol):
    def __init__(self) -> None:
        self.frames = self.bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # TCP is both ways
        self.transport = transport
        transport.write(b"GET /console/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.frames += data.count(b"event: frame")
        self.bytes += len(data)


Load = Callable[[Router, float], Awaitable[float]]


async def _quiet(router: Router, seconds: float) -> float:
    cpu_before_s, began = cpu_s(router.pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (cpu_s(router.pid) - cpu_before_s) / (time.perf_counter() - began)


async def _busy(router: Router, seconds: float) -> float:
    """The same while it rejects REFUSED requests a second."""
    ask = Same(chat(router.port, "hang", temperature=0))
    refused = asyncio.create_task(at_rates(router.port, {"bench": REFUSED}, ask, seconds + 1))
    await asyncio.sleep(0.5)
    share = await _quiet(router, seconds)
    statuses = {row.status for row in (await refused).rows}
    if statuses != {429}:
        raise RuntimeError(f"expected refusals, got {statuses}")
    return share


async def _watched(router: Router, viewers: int, load: Load, seconds: float) -> tuple[float, float, float]:
    """With so many viewers: the router's share of a core, frames a second, and bytes a frame of each viewer."""
    loop = asyncio.get_running_loop()
    watching = [(await loop.create_connection(Viewer, "127.0.0.1", router.port))[1] for _ in range(viewers)]
    await asyncio.sleep(0.5)
    before, began = sum(viewer.frames for viewer in watching), time.perf_counter()
    share = await load(router, seconds)
    frames = (sum(viewer.frames for viewer in watching) - before) / (time.perf_counter() - began) / viewers
    size = sum(viewer.bytes for viewer in watching) / max(1, sum(viewer.frames for viewer in watching))
    for viewer in watching:
        viewer.transport.close()
    await asyncio.sleep(0.3)
    return share, frames, size


async def _viewers(seconds: float) -> list[Figure]:
    """Every worker has a request that is never answered, and every tenant's queue is full of them."""
    workers = Workers(WORKERS, slots=1, models=("hang",))
    async with standing(SETTINGS, workers=workers) as router:
        tenants = (f"tenant-{number % TENANTS}" for number in range(WORKERS + QUEUED))
        held = await hold(router.port, [chat(router.port, "hang", tenant=name, temperature=0) for name in tenants], 0.5)
        rounds = [await _round(router, seconds) for _ in range(ROUNDS)]
        for holder in held:
            holder.transport.close()
    return median(rounds)


async def _round(router: Router, seconds: float) -> list[Figure]:
    """One round, with viewers and without, close together, since other programs on the machine come and go."""
    quiet = await _quiet(router, seconds)
    one, _, _ = await _watched(router, 1, _quiet, seconds)
    many, frames, size = await _watched(router, VIEWERS, _quiet, seconds)
    busy = await _busy(router, seconds)
    beside, _, _ = await _watched(router, VIEWERS, _busy, seconds)
    unit, nothing = "% of a core", f"no other requests; without a viewer the router uses {100 * quiet:.1f} %"
    refusing = f"{REFUSED:g} rejections a second; without a viewer the router uses {100 * busy:.1f} %"
    return [
        Figure("one viewer", 100 * (one - quiet), unit, note=nothing),
        at_most(f"{VIEWERS} viewers", 100 * (many - quiet), 5, unit, nothing),
        at_most(f"{VIEWERS} viewers beside a load", 100 * (beside - busy), 5, unit, refusing),
        Figure("frames for each of them", frames, "a second", 4, note=f"{size:,.0f} bytes each"),
    ]


async def measure(seconds: float, say: Say) -> Result:
    with_journal, without = _entries_us(Journal()), _entries_us(_NoJournal())
    made_ms, encoded_ms, size = await _frame()
    say("the journal and a frame are measured")
    kept = f"{with_journal:.2f} us with the records themselves, {without:.2f} us without the journal"
    full = f"{QUEUED} queued, a request at every worker, 500 answers in the last second"
    figures = [
        at_most("a request's two entries in the journal", with_journal - without, 2, "us", kept),
        at_most(f"making a frame: {TENANTS} tenants, {WORKERS} workers", made_ms, 2, "ms", full),
        Figure("encoding it, once for all viewers", encoded_ms, "ms", note=f"{size:,} bytes"),
        *await _viewers(seconds),
    ]
    return result(figures, seconds)


def result(figures: list[Figure], seconds: float) -> Result:
    return Result("The cost of the console", {"console": figures}, [
        f"""\
The router has a core of its own; the viewers and the load share another. Shares of a core are processor time of the
router's process over {seconds:g} s, less that of the same time without viewers. The pool is full, so a frame is large:
{TENANTS} tenants with {QUEUED // TENANTS} queued requests each, {WORKERS} busy workers, and continuous decisions. The
shares are the medians of {ROUNDS} rounds, with the lowest and the highest.
""",
        figures_table(figures),
    ])  # fmt: skip
