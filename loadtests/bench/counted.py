"""Counts the router's bytecodes exactly, with the router, a worker and clients in one event loop in memory.

Every bytecode instruction of a function below `services/` is a step. Work inside C code is not counted: decoding ten
bytes is the same step as decoding ten thousand. The clock is virtual and there are no sockets, so neither reads nor
time vary, and all inputs from the system are fixed. Two counts of the same code are equal on every machine with the
same Python.

Run: python -m loadtests.bench.counted KIND [metrics,log,journal]
It prints the steps of one request of this kind by file, as JSON; without the named parts of observation, if any.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from loadtests.bench.silenced import silence
from loadtests.bench.stand import CONNECTIONS, HELD, HOLD_S, Workers, chat, of_tenants
from loadtests.bench.stub import Stub
from loadtests.cluster.loop import SimLoop, run
from loadtests.load.closed import Connection, LoopResults, connect, hold
from services import compiled
from services.router import app
from services.router.config import RouterSettings
from services.runtime.log import Log
from services.runtime.serve import running

STUB_PORT = 7000
REQUESTS = 160
WARM_UP = 2 * REQUESTS
"""Caches fill, and estimates are learned."""
FULL = {"max_inflight": 1, "max_queue_size": 1, "tenant_queue_size": 1}
STATUS = {"answers": 200, "refusals": 429, "early retries": 429}
HERE = "/services/"
WORK_S = 0.02
"""Service time of the worker. Time must pass, or rates would be infinite."""


class Steps:
    def __init__(self) -> None:
        self.of_file: Counter[str] = Counter()

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """The function for `sys.settrace`: called when a frame starts or resumes."""
        _, here, file = frame.f_code.co_filename.rpartition(HERE)
        if not here:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        of_file = self.of_file

        def step(frame: FrameType, event: str, arg: object) -> Any:
            if event == "opcode":
                of_file[file] += 1
            return step

        return step


class Worker(Stub):
    """The benchmarks' stub with a service time."""

    def on_message_complete(self) -> None:
        asyncio.get_running_loop().call_later(WORK_S, super().on_message_complete)


async def counted(kind: str, folder: Path) -> Counter[str]:
    """The steps of `REQUESTS` requests, by file below services/."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    await loop.create_server(Worker, "127.0.0.1", STUB_PORT)
    workers = Workers().written(folder, STUB_PORT)
    full: dict[str, Any] = {} if kind == "answers" else FULL
    settings = RouterSettings(  # type: ignore[call-arg]  # pydantic-settings' own keyword
        _env_file=None, router_port=0, metrics_port=0, workers_file=workers, retrieval_url="http://127.0.0.1:1",
        probe_interval_s=60, drain_timeout_s=0.1, **full,
    )  # fmt: skip
    log = Log("router", stream=io.BytesIO(), clock=loop.unix_time, threaded=True)  # as in production
    try:
        router = app.build(settings, rng=Random(1), log=log)
        async with running(router, bind=loop.bind) as process:  # type: ignore[arg-type]  # no sockets of the kernel
            return await _count(process.bound_port, kind)
    finally:
        log.close()  # its thread would keep the clock, the loop and everything in it alive


async def _count(port: int, kind: str) -> Counter[str]:
    results = LoopResults()
    held = await hold(port, [] if kind == "answers" else [chat(port, "hang")] * HELD, HOLD_S)
    clients, asked = [await connect(port, results) for _ in range(CONNECTIONS)], of_tenants(port)
    await _ask(clients, asked, WARM_UP)
    retried = kind == "early retries"  # each client sends the same request again, before its hint
    if retried:
        await _ask(clients, asked, CONNECTIONS, again=True)
    steps = Steps()
    sys.settrace(steps.trace)
    try:
        await _ask(clients, asked, REQUESTS, again=retried)
    finally:
        sys.settrace(None)
    results.only(STATUS[kind])
    for client in (*clients, *held):
        client.transport.close()
    return steps.of_file


async def _ask(clients: list[Connection], asked: list[bytes], requests: int, *, again: bool = False) -> None:
    for number in range(requests // len(clients)):
        first = 0 if again else number
        await asyncio.gather(*(client.ask(asked[(first + at) % len(asked)]) for at, client in enumerate(clients)))
        await asyncio.sleep(WORK_S / 10)


def steps_of(kind: str) -> dict[str, float]:
    """The steps of one request of this kind, by file below services/. Raises RuntimeError for compiled code."""
    if compiled.in_use():
        raise RuntimeError("compiled code has no bytecodes: count with WEIR_CODE=python")
    with tempfile.TemporaryDirectory() as folder:
        found = run(counted(kind, Path(folder)))
    return {file: count / REQUESTS for file, count in sorted(found.items())}


def steps_a_request() -> dict[str, dict[str, float]]:
    return {kind: steps_of(kind) for kind in STATUS}


if __name__ == "__main__":
    silence(set(sys.argv[2].split(",")) if len(sys.argv) > 2 else set())
    print(json.dumps(steps_of(sys.argv[1])))
