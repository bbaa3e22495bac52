"""A router, its worker and its clients in one process, and the router's bytecodes counted while requests go through it.

Every instruction of a function below `services/` is a step. What C code does in one of them is not seen: it is the same
step whether it decodes ten bytes or ten thousand. Only the event loop's thread is counted.

Run: python -m loadtests.bench.steps.counted KIND OUT [metrics,log,journal]      OUT: JSON, steps a request by file
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

from loadtests.bench.client import Connection, Tally, connect, post
from loadtests.bench.observing.stand import questions
from loadtests.bench.observing.subject import silence
from loadtests.bench.router import CONNECTIONS, chat, forget
from loadtests.bench.stub import Stub
from services.router import app
from services.router.config import RouterSettings
from services.runtime.serve import Process, running

REQUESTS = 320
WARM_UP = 2 * REQUESTS
"""Caches fill, and estimates begin to answer for themselves."""
FULL = {"max_inflight": 1, "max_queue_size": 1, "tenant_queue_size": 1}
STATUS = {"answers": 200, "refusals": 429}
HERE = "/services/"


class Steps:
    """The steps of the router's own code, by file."""

    def __init__(self) -> None:
        self.of_file: Counter[str] = Counter()

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """For sys.settrace: a function begins, or goes on."""
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


async def counted(kind: str) -> dict[str, float]:
    """Steps a request, by file."""
    with tempfile.TemporaryDirectory() as folder:
        stub = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{stub.sockets[0].getsockname()[1]}/v1"
        workers = Path(folder) / "workers.yaml"
        workers.write_text(f"workers: [{{name: stub, kind: openai, url: '{url}', slots: 1000, models: [fast, hang]}}]")
        full: dict[str, Any] = FULL if kind == "refusals" else {}
        settings = RouterSettings(  # type: ignore[call-arg]  # pydantic-settings' own keyword
            _env_file=None, router_port=0, metrics_port=0, workers_file=workers, retrieval_url="http://127.0.0.1:1",
            probe_interval_s=60, drain_timeout_s=0.1, **full,
        )  # fmt: skip
        async with running(app.build(settings)) as process:
            return await _steps(process, kind)


async def _steps(process: Process, kind: str) -> dict[str, float]:
    tally, port = Tally(), process.bound_port
    held = [await connect(port, Tally()) for _ in range(2 if kind == "refusals" else 0)]
    for holder in held:  # one that runs and one that waits: the house is full
        holder.ask(post(port, "/v1/chat/completions", chat("hang"))).add_done_callback(forget)
        await asyncio.sleep(0.1)
    clients, asked = [await connect(port, tally) for _ in range(CONNECTIONS)], questions(port)
    await _ask(clients, asked, WARM_UP)
    steps = Steps()
    sys.settrace(steps.trace)
    try:
        await _ask(clients, asked, REQUESTS)
    finally:
        sys.settrace(None)
    if set(tally.statuses) != {STATUS[kind]}:
        raise RuntimeError(f"expected {STATUS[kind]} only, got {tally.statuses}")
    for client in (*clients, *held):
        client.transport.close()
    return {file: count / REQUESTS for file, count in steps.of_file.items()}


async def _ask(clients: list[Connection], asked: Any, requests: int) -> None:
    for turn in range(requests // len(clients)):
        await asyncio.gather(*(client.ask(asked[(turn + at) % len(asked)]) for at, client in enumerate(clients)))


if __name__ == "__main__":
    silence(set(sys.argv[3].split(",")) if len(sys.argv) > 3 else set())
    Path(sys.argv[2]).write_text(json.dumps(uvloop.run(counted(sys.argv[1]))))
