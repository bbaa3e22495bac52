"""Machine instructions of a request in the router, by valgrind: of its code, compiled or not, and of all libraries.

The count hardly depends on the load of the machine, so it shows changes of a percent that a clock would not; and unlike
bytecodes (`steps`) it counts compiled code and the work of C. It does not see the kernel, nor what the processor's
caches make of it.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import msgspec

from loadtests.bench.processes import store
from loadtests.bench.stand import FULL, HELD, all_different, chat, router_before
from loadtests.bench.stub import stub
from loadtests.bench.worker import quick_worker
from loadtests.cluster.processes import StandError
from loadtests.load.closed import LoopResults, connect, hold
from loadtests.report.figure import Figure
from loadtests.report.page import figures_table, table
from loadtests.report.progress import Say
from loadtests.report.result import Result
from services import compiled

QUICK = {"requests": 50}
WARM_UP = 200
"""Caches fill, and estimates are learned."""
HOLD_S = 3.0
PATIENT = {
    "DEFAULT_SLO_MS": "60000", "MAX_DEADLINE_MS": "60000", "DRAIN_TIMEOUT_S": "0.1", "PYTHONHASHSEED": "0",
}  # fmt: skip
"""Valgrind is some fifty times slower: no request may be rejected for that, and the end must not take long."""
OUT = "callgrind.out"
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no")
KINDS = {"answer": 200, "refusal": 429, "answer of a worker": 200, "the same, of a borrowed slot": 200}
"""Before a stub; and before a Weir worker, by the only router and by one of several, which borrows slots."""
OF_WORKER, BORROWED = list(KINDS)[2:]
STAGES: Mapping[str, tuple[str, ...]] = {
    "HTTP from the client": ("CPyDef_guard___Inbound___take",),
    "parsing the body": ("CPyDef_parsers___parse_chat",),
    "tenant, deadline, sizes": ("CPyDef_pipeline___Pipeline___introduce", "CPyDef_pipeline___Pipeline____weigh"),
    "admission, and a slot": ("CPyDef_dispatcher___Dispatcher___admit", "CPyDef_earlyretry___remember"),
    "timer of the deadline": ("CPyDef_deadlinetimer___DeadlineTimer", "CPyDef_deadlinetimer___DeadlineTimer___stop"),
    "request to the worker": ("CPyDef_openai____post_OpenAIUpstream_gen_____mypyc_generator_helper__",),
    "answer of the worker": (
        "CPyDef_upstream_connection___UpstreamConnection___data_received", "CPyDef_openaianswer___answer_of",
    ),
    "answer to the client": (
        "CPyDef_response___send_whole_gen_____mypyc_generator_helper__",
        "CPyDef_response___send_failure_gen_____mypyc_generator_helper__",
    ),
    "slot, charge and estimates at the end": (
        "CPyDef_dispatcher___Dispatcher___release", "CPyDef_dispatcher___Dispatcher___first_token",
        "CPyDef_usage___used",
    ),
    "metrics": (
        "CPyDef_metrics___RouterMetrics___admitted", "CPyDef_metrics___RouterMetrics___started",
        "CPyDef_metrics___RouterMetrics___ended", "CPyDef_metrics___RouterMetrics___served",
        "CPyDef_metrics___RouterMetrics___refused",
    ),
    "journal": ("CPyDef_journal___Journal___admitted", "CPyDef_journal___Journal___ended"),
    "log": ("CPyDef_service___Service____log_request",),
    "writes": ("CPyDef_write_coalescer___WriteCoalescer___flush",),
}  # fmt: skip
"""Functions of compiled code; none of them is called by another."""
OBSERVATION = ("metrics", "journal", "log")
REST = "event loop, task, coroutines and the rest"
ABOUT = """\
Counted by valgrind over {requests:,} requests of one client, one after the other, after a warm-up, in user space: the
router's code ({code}), Python, and all libraries. The load of the machine hardly changes the count, so it shows changes
of a percent that a clock would not. It does not see the kernel, nor the processor's caches. Timers count as well, more
than on a busy router, since a request takes so long here: leases are looked at 20 times a second.

A line of the second table counts functions with all that they call."""


class Counts(msgspec.Struct, frozen=True):
    """Instructions of one request; `by_stage` is 0 for code that is not compiled."""

    total: float
    by_stage: dict[str, float]

    @property
    def observed(self) -> float:
        return sum(self.by_stage[stage] for stage in OBSERVATION)


class Options(msgspec.Struct, frozen=True):
    requests: Annotated[int, msgspec.Meta(ge=10, le=10_000, description="requests counted of each kind")] = 1000


async def measure(options: Options, say: Say) -> Result:
    """Raises StandError if valgrind is not installed."""
    if shutil.which(VALGRIND[0]) is None:
        raise StandError("valgrind is not installed: apt install valgrind")
    found = {}
    for kind in KINDS:
        say(f"{kind}s")
        found[kind] = await instructions(kind, options.requests)
    return result(found, "compiled" if compiled.in_use() else "Python", options.requests)


@asynccontextmanager
async def before(kind: str, folder: Path) -> AsyncIterator[tuple[int, Mapping[str, str]]]:
    """Run what the router is to stand before. Yields the port of the stub, if it is one, and the router's settings."""
    code = {"WEIR_CODE": "compiled" if compiled.in_use() else "python"}
    if kind not in (OF_WORKER, BORROWED):
        async with stub() as port:
            yield port, PATIENT | code | (FULL if kind == "refusal" else {})
        return
    async with quick_worker(folder) as file:
        with store() if kind == BORROWED else nullcontext("") as exchange_url:
            yield 0, PATIENT | code | {"WORKERS_FILE": str(file), "EXCHANGE_URL": exchange_url}


async def instructions(kind: str, requests: int) -> Counts:
    """Of one request of this kind, in user space."""
    with tempfile.TemporaryDirectory(prefix="weir-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        under = [*VALGRIND, f"--callgrind-out-file={folder / OUT}"]
        async with (
            before(kind, folder) as (stub_port, settings),
            router_before(stub_port, settings, under=under) as made,
        ):
            held = await hold(made.port, [chat(made.port, "hang")] * (HELD if kind == "refusal" else 0), HOLD_S)
            results = LoopResults()
            client = await connect(made.port, results)
            asked = all_different(made.port, 1 if kind in (OF_WORKER, BORROWED) else 64)
            for _ in range(WARM_UP):
                await client.ask(asked())
            await _control(made.pid, "--instr=on")
            for _ in range(requests):
                await client.ask(asked())
            await _control(made.pid, "--instr=off")
            results.only(KINDS[kind])
            for each in (client, *held):
                each.transport.close()
        return counts(_listing(folder), requests)


def counts(listing: str, requests: int) -> Counts:
    """What `callgrind_annotate --inclusive=yes` lists, for one request."""
    by_stage = dict.fromkeys(STAGES, 0.0)
    total = 0.0
    for line in listing.splitlines():
        words = line.split()
        if line.endswith("PROGRAM TOTALS"):
            total = _number(words[0])
        elif "CPyDef_" in line and (stage := _stage(words[-2 if words[-1].endswith("]") else -1])):
            by_stage[stage] += _number(words[0])
    return Counts(total / requests, {stage: count / requests for stage, count in by_stage.items()})


def _stage(place: str) -> str | None:
    """The stage to which the function at `FILE:FUNCTION` belongs. What is inlined into it has a line by its file."""
    return next((stage for stage, functions in STAGES.items() if place.rpartition(":")[2] in functions), None)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def result(found: Mapping[str, Counts], code: str, requests: int) -> Result:
    figures = [Figure(f"{kind}, {code}", each.total, "instructions") for kind, each in found.items()]
    blocks = [ABOUT.format(requests=requests, code=code), figures_table(figures)]
    if any(sum(each.by_stage.values()) for each in found.values()):
        figures += [Figure(f"{kind}: observation", each.observed / each.total, "%") for kind, each in found.items()]
        rows = [(stage, *(f"{each.by_stage[stage]:,.0f}" for each in found.values())) for stage in STAGES]
        rows.append((REST, *(f"{each.total - sum(each.by_stage.values()):,.0f}" for each in found.values())))
        rows.append(("**all**", *(f"**{each.total:,.0f}**" for each in found.values())))
        blocks[1:] = [figures_table(figures), table(("instructions", *(f"{kind}:" for kind in found)), rows)]
    return Result("Machine instructions of a request", {"instructions": figures}, blocks)


async def _control(pid: int, what: str) -> None:
    command = ["callgrind_control", what, str(pid)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StandError(f"valgrind could not be controlled: {done.stderr}")


def _listing(folder: Path) -> str:
    """What valgrind counted, by function, with all that each calls."""
    files = [str(file) for file in folder.glob(f"{OUT}*")]
    command = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
