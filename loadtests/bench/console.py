"""What it costs to be looked at: the journal in every request, one frame, and fifty viewers of a router that is busy.

a request's entries   the same records made, with the journal and without: the difference of the best batches
a frame               16 tenants with full lines, 64 workers with a request each: made, and encoded
fifty viewers         over sockets, of a router whose house is full: the processor time of its process with viewers,
                      less that without, as a share of one core; while nobody asks, and while it refuses
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

TENANTS, WORKERS, IN_LINE = 16, 64, 192
SLO = RequestSLO(120_000.0, 120_000.0)
VIEWERS = 50
REFUSED = 500.0
ROUNDS = 3
BATCHES, CALLS = 7, 5000
SETTINGS = {
    "MAX_INFLIGHT": str(WORKERS), "MAX_QUEUE_SIZE": str(IN_LINE), "DEFAULT_SLO_MS": "600000",
    "MAX_DEADLINE_MS": "600000", "MAX_LAB_TENANTS": "20", "PROBE_INTERVAL_S": "30",
}  # fmt: skip


# ---- in this process


class _NoUpstream:
    """A worker that is never spoken to."""

    def close(self) -> None:
        pass


def _worker(number: int) -> Worker:
    spec = WorkerSpec(
        name=f"worker-{number}", kind="openai", url="http://127.0.0.1:1", models=["hang"], slots=1, lookahead=0
    )
    upstream: Upstream = _NoUpstream()  # type: ignore[assignment]  # the ledger is all that is used
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
    """Keeps nothing."""

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
    """Milliseconds to make one, to encode one, and its bytes."""
    loop, rng, bounds = asyncio.get_running_loop(), Random(1), QueueBounds(10_000)
    scheduler = Scheduler(SchedulerSettings(bounds, TenantSpec("", bounds)), rng.random)
    dispatcher = Dispatcher(scheduler, Fleet([_worker(n) for n in range(WORKERS)], rng), InflightCap(WORKERS), rng)
    dispatcher.capacity_changed()
    journal, metrics = Journal(), RouterMetrics(new_registry())
    for number in range(WORKERS + IN_LINE):
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
    """Reads, and counts frames."""

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
    """Processor seconds a second of the router, while no request comes."""
    prefill_backlog_s, began = cpu_s(router.pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (cpu_s(router.pid) - prefill_backlog_s) / (time.perf_counter() - began)


async def _busy(router: Router, seconds: float) -> float:
    """The same, while it refuses REFUSED a second."""
    ask = Same(chat(router.port, "hang", temperature=0))
    refused = asyncio.create_task(at_rates(router.port, {"bench": REFUSED}, ask, seconds + 1))
    await asyncio.sleep(0.5)
    share = await _quiet(router, seconds)
    statuses = {row.status for row in (await refused).rows}
    if statuses != {429}:
        raise RuntimeError(f"expected refusals, got {statuses}")
    return share


async def _watched(router: Router, viewers: int, load: Load, seconds: float) -> tuple[float, float, float]:
    """The router's share of a core with so many viewers; frames a second and bytes a frame of one."""
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
    """Every worker has a request that is never answered, and every line is full of them."""
    workers = Workers(WORKERS, slots=1, models=("hang",))
    async with standing(SETTINGS, workers=workers) as router:
        tenants = (f"tenant-{number % TENANTS}" for number in range(WORKERS + IN_LINE))
        held = await hold(router.port, [chat(router.port, "hang", tenant=name, temperature=0) for name in tenants], 0.5)
        rounds = [await _round(router, seconds) for _ in range(ROUNDS)]
        for holder in held:
            holder.transport.close()
    return median(rounds)


async def _round(router: Router, seconds: float) -> list[Figure]:
    """With viewers and without, close together: a neighbour on the machine comes and goes."""
    quiet = await _quiet(router, seconds)
    one, _, _ = await _watched(router, 1, _quiet, seconds)
    many, frames, size = await _watched(router, VIEWERS, _quiet, seconds)
    busy = await _busy(router, seconds)
    beside, _, _ = await _watched(router, VIEWERS, _busy, seconds)
    unit, nothing = "% of a core", f"nobody asks for anything, which costs {100 * quiet:.1f} % without a viewer"
    refusing = f"{REFUSED:g} refusals a second cost {100 * busy:.1f} % without a viewer"
    return [
        Figure("one viewer", 100 * (one - quiet), unit, note=nothing),
        at_most(f"{VIEWERS} viewers", 100 * (many - quiet), 5, unit, nothing),
        at_most(f"{VIEWERS} viewers beside a load", 100 * (beside - busy), 5, unit, refusing),
        Figure("frames that each of them gets", frames, "a second", 4, note=f"{size:,.0f} bytes each"),
    ]


async def measure(seconds: float, say: Say) -> Result:
    """What it costs to be looked at."""
    with_journal, without = _entries_us(Journal()), _entries_us(_NoJournal())
    made_ms, encoded_ms, size = await _frame()
    say("the journal and a frame are measured")
    kept = f"{with_journal:.2f} us with the records themselves, {without:.2f} us without the journal"
    full = f"{IN_LINE} in line, a request at every worker, 500 answers in the last second"
    figures = [
        at_most("a request's two entries in the journal", with_journal - without, 2, "us", kept),
        at_most(f"making a frame: {TENANTS} tenants, {WORKERS} workers", made_ms, 2, "ms", full),
        Figure("encoding it, once for all viewers", encoded_ms, "ms", note=f"{size:,} bytes"),
        *await _viewers(seconds),
    ]
    return result(figures, seconds)


def result(figures: list[Figure], seconds: float) -> Result:
    """As a page."""
    return Result("What it costs to be looked at", {"console": figures}, [
        f"""\
The router has a core to itself, and the viewers and the load share another. Shares of a core are processor time of the
router's process, {seconds:g} s each, less that of the same time while nobody looks. The house is full, so a frame is
large: {TENANTS} tenants with {IN_LINE // TENANTS} in line each, {WORKERS} workers that all run something, and decisions
without a pause. The shares are the medians of {ROUNDS} rounds, with the least and the greatest.
""",
        figures_table(figures),
    ])  # fmt: skip
