"""What it costs to be looked at: the journal in every request, one frame, and fifty viewers of a router that is busy.

a request's entries   the same records made, with the journal and without: the difference of the best batches
a frame               16 tenants with full lines, 64 workers with a request each: made, and encoded
fifty viewers         over sockets, of a router whose house is full: the processor time of its process with viewers,
                      less that without, as a share of one core; while nobody asks, and while it refuses
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec

from loadtests.bench.client import Connection, Tally, connect, open_loop, post
from loadtests.bench.machine import cores, cpu_s, pinned, process, until_ready
from loadtests.bench.router import chat
from loadtests.report.figure import Figure, median
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services.cli.ports import free_port
from services.core.account import Bounds, TenantSpec
from services.core.choices import WeirSettings
from services.core.limit import InflightCap
from services.core.outcome import Outcome
from services.core.weir import Weir
from services.router.console.feed import Feed
from services.router.deciding.dispatcher import Dispatcher
from services.router.observing.journal import Journal
from services.router.observing.life import Life
from services.router.observing.metrics import RouterMetrics
from services.router.tenancy.tenants import Tenant
from services.router.upstreams.call import Upstream
from services.router.workers.fleet import Fleet
from services.router.workers.turn import Turn
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.drain import Drain
from services.runtime.telemetry import new_registry

TENANTS, WORKERS, IN_LINE = 16, 64, 192
VIEWERS = 50
REFUSED = 500
ROUNDS = 3
BATCHES, CALLS = 7, 5000
BODY = chat("hang").replace(b'"max_tokens":64', b'"max_tokens":64,"temperature":0')


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


def _turn(number: int, now: float) -> Turn:
    return Turn(f"r-{number}", f"tenant-{number % TENANTS}", now, now + 120.0, 40, 64, model="hang")


class _NoJournal(Journal):
    """Keeps nothing."""

    def admitted(self, id: str, life: Life, level: int) -> None:
        pass

    def ended(self, id: str, life: Life, outcome: Outcome, failure: object, now: float) -> None:
        pass


def _entries_us(journal: Journal) -> float:
    tenant, spent_s = Tenant("t"), []
    for _ in range(BATCHES):
        began = time.process_time()
        for number in range(CALLS):
            turn = _turn(number, float(number))
            life = Life(float(number), tenant, deadline_ms=120_000.0, turn=turn, weighed=turn)
            journal.admitted(turn.id, life, 0)  # type: ignore[arg-type]  # the core's ids may be numbers
            journal.ended(turn.id, life, Outcome.SERVED, None, float(number))  # type: ignore[arg-type]
        spent_s.append(time.process_time() - began)
    return min(spent_s) / CALLS * 1e6


async def _frame() -> tuple[float, float, int]:
    """Milliseconds to make one, to encode one, and its bytes."""
    loop, rng, bounds = asyncio.get_running_loop(), Random(1), Bounds(10_000)
    weir = Weir(WeirSettings(bounds, TenantSpec("", bounds)), rng.random)
    dispatcher = Dispatcher(weir, Fleet([_worker(n) for n in range(WORKERS)], rng), InflightCap(WORKERS), rng)
    dispatcher.capacity_changed()
    journal, metrics = Journal(), RouterMetrics(new_registry())
    for number in range(WORKERS + IN_LINE):
        turn, now = _turn(number, loop.time()), loop.time()
        assert dispatcher.admit(now, turn) is None
        life = Life(now, Tenant(turn.tenant), deadline_ms=120_000.0, turn=turn, weighed=turn)
        journal.admitted(f"r-{number}", life, 0)
    for number in range(500):
        turn = _turn(number, loop.time())
        life = Life(loop.time(), Tenant(turn.tenant), deadline_ms=120_000.0, turn=turn, weighed=turn)
        journal.ended(f"s-{number}", life, Outcome.SERVED, None, loop.time())
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


async def _full_house(port: int) -> list[Connection]:
    """Every worker has a request that is never answered, and every line is full of them."""
    held = []
    for number in range(WORKERS + IN_LINE):
        holder = await connect(port, Tally())
        name = b"x-tenant: tenant-%d\r\n" % (number % TENANTS)
        asked = post(port, "/v1/chat/completions", BODY).replace(b"content-type", name + b"content-type", 1)
        holder.ask(asked).add_done_callback(lambda done: done.cancelled() or done.exception())
        held.append(holder)
    await asyncio.sleep(0.5)
    return held


async def _quiet(port: int, pid: int, seconds: float) -> float:
    """Processor seconds a second of the router, while nobody asks for anything."""
    before_s, began = cpu_s(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.perf_counter() - began)


async def _busy(port: int, pid: int, seconds: float) -> float:
    """The same, while it refuses REFUSED a second."""
    refused = asyncio.create_task(open_loop(port, post(port, "/v1/chat/completions", BODY), REFUSED, seconds + 1))
    await asyncio.sleep(0.5)
    share = await _quiet(port, pid, seconds)
    tally = await refused
    if set(tally.statuses) != {429}:
        raise RuntimeError(f"expected refusals, got {tally.statuses}")
    return share


Load = Callable[[int, int, float], Awaitable[float]]


async def _watched(port: int, pid: int, viewers: int, load: Load, seconds: float) -> tuple[float, float, float]:
    """The router's share of a core with so many viewers; frames a second and bytes a frame of one."""
    loop = asyncio.get_running_loop()
    watching = [(await loop.create_connection(Viewer, "127.0.0.1", port))[1] for _ in range(viewers)]
    await asyncio.sleep(0.5)
    before, began = sum(viewer.frames for viewer in watching), time.perf_counter()
    share = await load(port, pid, seconds)
    frames = (sum(viewer.frames for viewer in watching) - before) / (time.perf_counter() - began) / viewers
    size = sum(viewer.bytes for viewer in watching) / max(1, sum(viewer.frames for viewer in watching))
    for viewer in watching:
        viewer.transport.close()
    await asyncio.sleep(0.3)
    return share, frames, size


async def _viewers(seconds: float) -> list[Figure]:
    router_core, other_core = cores()
    port, metrics_port, stub_port = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder, pinned(other_core):
        workers = Path(folder) / "workers.yaml"
        url = f"http://127.0.0.1:{stub_port}/v1"
        entries = [
            f"  - {{name: w{n}, kind: openai, url: '{url}', slots: 1, models: [hang]}}\n" for n in range(WORKERS)
        ]
        workers.write_text("workers:\n" + "".join(entries))
        env = {
            "ROUTER_PORT": str(port), "METRICS_PORT": str(metrics_port), "WORKERS_FILE": str(workers),
            "MAX_INFLIGHT": str(WORKERS), "MAX_QUEUE_SIZE": str(IN_LINE),
            "DEFAULT_SLO_MS": "600000", "MAX_DEADLINE_MS": "600000",
            "MAX_LAB_TENANTS": "20", "PROBE_INTERVAL_S": "30", "RETRIEVAL_URL": "http://127.0.0.1:1",
        }  # fmt: skip
        stub = process(["-m", "loadtests.bench.stub", str(stub_port)], other_core)
        async with stub, process(["-m", "services.router"], router_core, env) as pid:
            await until_ready(f"http://127.0.0.1:{port}/health/ready")
            held = await _full_house(port)
            rounds = [await _round(port, pid, seconds) for _ in range(ROUNDS)]
            for holder in held:
                holder.transport.close()
    return median(rounds)


async def _round(port: int, pid: int, seconds: float) -> list[Figure]:
    """With viewers and without, close together: a neighbour on the machine comes and goes."""
    quiet = await _quiet(port, pid, seconds)
    one, _, _ = await _watched(port, pid, 1, _quiet, seconds)
    many, frames, size = await _watched(port, pid, VIEWERS, _quiet, seconds)
    busy = await _busy(port, pid, seconds)
    beside, _, _ = await _watched(port, pid, VIEWERS, _busy, seconds)
    nothing = f"nobody asks for anything, which costs {100 * quiet:.1f} % without a viewer"
    return [
        Figure("one viewer", 100 * (one - quiet), "% of a core", note=nothing),
        Figure(f"{VIEWERS} viewers", 100 * (many - quiet), "% of a core", 5, at_least=False, note=nothing),
        Figure(f"{VIEWERS} viewers beside a load", 100 * (beside - busy), "% of a core", 5, at_least=False,
               note=f"{REFUSED} refusals a second cost {100 * busy:.1f} % without a viewer"),
        Figure("frames that each of them gets", frames, "a second", 4, note=f"{size:,.0f} bytes each"),
    ]  # fmt: skip


class Options(msgspec.Struct, frozen=True):
    """Of this bench."""

    seconds: Annotated[float, msgspec.Meta(ge=1, le=120, description="how long each load lasts")] = 4.0


QUICK = {"seconds": 1.0}


async def measure(options: Options, say: Say) -> Result:
    """What it costs to be looked at."""
    with_journal, without = _entries_us(Journal()), _entries_us(_NoJournal())
    made_ms, encoded_ms, size = await _frame()
    say("the journal and a frame are measured")
    figures = [
        Figure("a request's two entries in the journal", with_journal - without, "us", 2, at_least=False,
               note=f"{with_journal:.2f} us with the records themselves, {without:.2f} us without the journal"),
        Figure(f"making a frame: {TENANTS} tenants, {WORKERS} workers", made_ms, "ms", 2, at_least=False,
               note=f"{IN_LINE} in line, a request at every worker, 500 answers in the last second"),
        Figure("encoding it, once for all viewers", encoded_ms, "ms", note=f"{size:,} bytes"),
        *await _viewers(options.seconds),
    ]  # fmt: skip
    return result(figures, options.seconds)


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
