"""Machine instructions of a request in the router, by valgrind: of its code, compiled or not, and of all libraries.

The count hardly depends on the load of the machine, so it shows changes of a percent that a clock would not; and unlike
bytecodes (`steps`) it counts compiled code and the work of C. It does not see the kernel, nor what the processor's
caches make of it.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from loadtests.bench.stand import FULL, HELD, ROUTER, Workers, all_different, chat
from loadtests.bench.stub import stub
from loadtests.cluster.processes import NOTHING, Process, StandError, free_ports, until_ready
from loadtests.cluster.stand import NO_RETRIEVAL
from loadtests.load.closed import LoopResults, connect, hold
from loadtests.paths import ROOT
from loadtests.report.figure import Figure
from loadtests.report.progress import Say
from services import compiled

QUICK = {"requests": 50}
WARM_UP = 200
"""Caches fill, and estimates are learned."""
HOLD_S = 3.0
PATIENT = {"DEFAULT_SLO_MS": "60000", "MAX_DEADLINE_MS": "60000"}
"""Valgrind is some fifty times slower: no request may be rejected for that."""
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no")
OBSERVATION = ("RouterMetrics", "Journal___admitted", "Journal___ended", "Service____log_request")
"""What the names of compiled functions of observation contain. None of them calls another."""
KINDS = {"answer": 200, "refusal": 429}


class Options(msgspec.Struct, frozen=True):
    requests: Annotated[int, msgspec.Meta(ge=10, le=10_000, description="requests counted of each kind")] = 1000


async def measure(options: Options, say: Say) -> list[Figure]:
    """Raises StandError if valgrind is not installed."""
    if shutil.which(VALGRIND[0]) is None:
        raise StandError("valgrind is not installed: apt install valgrind")
    code = "compiled" if compiled.in_use() else "Python"
    figures = []
    for kind in KINDS:
        say(f"{kind}s, {code}")
        counted, observed = await instructions(kind, options.requests)
        figures.append(Figure(f"{kind}, {code}", counted, "instructions"))
        if compiled.in_use():
            figures.append(Figure(f"{kind}: metrics, log and journal", observed / counted, "%"))
    return figures


async def instructions(kind: str, requests: int) -> tuple[float, float]:
    """(all, those of observation in compiled code) of one request of this kind, in user space."""
    with tempfile.TemporaryDirectory(prefix="weir-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with stub() as stub_port, _router(folder, stub_port, FULL if kind == "refusal" else NOTHING) as made:
            process, port = made
            held = await hold(port, [chat(port, "hang")] * (HELD if kind == "refusal" else 0), HOLD_S)
            results = LoopResults()
            client, asked = await connect(port, results), all_different(port)
            for _ in range(WARM_UP):
                await client.ask(asked())
            await _control(process, "on", folder)
            for _ in range(requests):
                await client.ask(asked())
            await _control(process, "off", folder)
            results.only(KINDS[kind])
            for each in (client, *held):
                each.transport.close()
        return _counted(folder) / requests, _observed(folder) / requests


@asynccontextmanager
async def _router(folder: Path, stub_port: int, settings: Mapping[str, str]) -> AsyncIterator[tuple[Process, int]]:
    port, metrics_port = free_ports(2)
    env = {
        "ROUTER_PORT": str(port), "METRICS_PORT": str(metrics_port), "RETRIEVAL_URL": NO_RETRIEVAL,
        "WORKERS_FILE": str(Workers().written(folder, stub_port)), "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0",
        "WEIR_CODE": "compiled" if compiled.in_use() else "python", **PATIENT, **settings,
    }  # fmt: skip
    process = Process("router", [*VALGRIND, sys.executable, "-m", ROUTER], env, folder)
    process.start()
    try:
        await until_ready(process, f"http://127.0.0.1:{port}/health/ready")
        yield process, port
        await process.leave(HOLD_S * 10)  # it writes what it counted
    finally:
        await process.stop()


async def _control(process: Process, state: str, folder: Path) -> None:
    done = await asyncio.to_thread(_run, ["callgrind_control", "-i", state, str(process.pid)], folder)
    if done:
        raise StandError(f"valgrind could not be controlled: {done}")


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def _counted(folder: Path) -> float:
    """The sum over what valgrind has written."""
    lines = [line for file in folder.glob("callgrind.out.*") for line in file.read_text(errors="replace").splitlines()]
    return max(float(line.split()[1]) for line in lines if line.startswith(("summary:", "totals:")))


def _observed(folder: Path) -> float:
    """The sum over the functions of observation, with all that they call."""
    files = [str(file) for file in folder.glob("callgrind.out.*")]
    command = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", *files]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in told.splitlines() if "CPyDef_" in line and "/build/__native_" in line]
    return sum(
        float(words[0].replace(",", "")) for words in lines if any(name in " ".join(words) for name in OBSERVATION)
    )
