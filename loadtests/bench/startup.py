"""`weir up` with an empty DATA_DIR and a second time, with every package installed; and a worker's idle memory.

Seconds count from the start of the command. "With its corpus": the project's documents have been ingested.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from loadtests.cluster.usage import rss_mb
from loadtests.report.figure import Figure
from services.cli.config import GOVERNOR_METRICS_OFFSET, METRICS_OFFSET, STORM_METRICS_OFFSET
from services.cli.ports import free_port, is_free

UP_WITHIN_S, DOWN_WITHIN_S = 120.0, 30.0
_READY = re.compile(r"ready in ([\d.]+) s(?:, with its corpus in ([\d.]+) s)?")
_WORKER = re.compile(r"^ready +worker-0 .*pid (\d+)", re.MULTILINE)


async def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        env = _environment(Path(folder) / "data")
        async with _up(env) as (first_s, first_corpus_s, _):
            pass
        async with _up(env) as (again_s, again_corpus_s, worker_pid):
            worker_mb = rss_mb(worker_pid)
    return [
        Figure("first start, ready", first_s, "s", 15, at_least=False, note="an empty DATA_DIR; the database is made"),
        Figure("first start, with its corpus", first_corpus_s, "s", note="the project's documents are ingested"),
        Figure("second start, ready", again_s, "s", 15, at_least=False),
        Figure("second start, with its corpus", again_corpus_s, "s", note="nothing has changed"),
        Figure("idle memory of a worker", worker_mb, "MB", 80, at_least=False),
    ]


def _environment(data: Path) -> dict[str, str]:
    ports = {name: _port_with_metrics() for name in ("ROUTER_PORT", "RETRIEVAL_PORT")}
    ports |= {name: free_port() for name in ("EMBEDDED_POSTGRES_PORT", "EMBEDDED_REDIS_PORT")}
    ports["GOVERNOR_PORT"] = _port_with_metrics(offset=GOVERNOR_METRICS_OFFSET)
    ports["STORM_PORT"] = _port_with_metrics(offset=STORM_METRICS_OFFSET)
    own = {"WORKER_PORT": str(_port_with_metrics(several=2)), "WORKERS_COUNT": "2", "DATA_DIR": str(data)}
    return {**os.environ, **own, **{name: str(port) for name, port in ports.items()}}


def _port_with_metrics(several: int = 1, offset: int = METRICS_OFFSET) -> int:
    """The first of `several` consecutive free ports whose metrics ports are free, too."""
    while True:
        first = free_port()
        if first + several + offset > 65_536:
            continue
        wanted = [first + n + above for n in range(several) for above in (0, offset)]
        if all(is_free("127.0.0.1", port) for port in wanted):
            return first


@contextlib.asynccontextmanager
async def _up(env: dict[str, str]) -> AsyncIterator[tuple[float, float, int]]:
    """A running stack: (seconds until ready, seconds until its corpus was in, a worker's process id)."""
    began = time.perf_counter()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", "up", env=env,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output = ""
        assert child.stdout is not None, "it was asked for"
        async with asyncio.timeout(UP_WITHIN_S):
            while not (ready := _READY.search(output)):
                line = await child.stdout.readline()
                if not line:
                    raise RuntimeError(f"`weir up` ended before it was up:\n{output}")
                output += line.decode()
        whole_s = time.perf_counter() - began
        corpus_s = float(ready[2]) - float(ready[1]) if ready[2] else 0.0
        worker = _WORKER.search(output)
        if worker is None:
            raise RuntimeError(f"`weir up` named no worker:\n{output}")
        yield whole_s - corpus_s, whole_s, int(worker[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGINT)
        async with asyncio.timeout(DOWN_WITHIN_S):
            await child.communicate()
