"""A simulated worker whose model takes almost no time: the cost of its queue, batching and HTTP."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from loadtests.cluster.processes import free_ports, started
from loadtests.load.closed import LoopResults, closed_loop, post
from loadtests.report.figure import Figure

CLIENTS = SLOTS = 32
SHORT_TOKENS, LONG_TOKENS = 8, 128
TIME_SCALE = 0.0001  # a step of 36 ms becomes 4 microseconds


async def measure(seconds: float) -> list[Figure]:
    async with _worker() as port:
        short = await _load(port, SHORT_TOKENS, False, seconds)
        long = await _load(port, LONG_TOKENS, True, seconds)
    of_short = f"{SHORT_TOKENS} tokens each, {CLIENTS} clients; p99 {short.quantile_ms(0.99):.1f} ms"
    of_long = f"{CLIENTS} streams of {LONG_TOKENS} tokens"
    return [
        Figure("unary answers", short.per_second, "requests/s", note=of_short),
        Figure("streamed tokens", long.per_second * LONG_TOKENS, "tokens/s", note=of_long),
    ]


@asynccontextmanager
async def _worker(model: str = "") -> AsyncIterator[int]:
    port, metrics_port = free_ports(2)
    env = {
        "WORKER_PORT": str(port), "METRICS_PORT": str(metrics_port), "SIM_TIME_SCALE": str(TIME_SCALE),
        "MAX_BATCH_SIZE": str(SLOTS), "MODEL_NAME": model,
    }  # fmt: skip
    async with started("services.worker", ready=f"http://127.0.0.1:{port}/health/ready", env=env):
        yield port


@asynccontextmanager
async def quick_worker(folder: Path) -> AsyncIterator[Path]:
    """Run one that serves the model of the stub. Yields a workers file in the folder that names it."""
    async with _worker("fast") as port:
        file = folder / "workers.yaml"
        entries = [{"name": "worker", "url": f"http://127.0.0.1:{port}", "kind": "weir"}]
        file.write_text(json.dumps({"workers": entries}), encoding="utf-8")  # JSON is YAML
        yield file


async def _load(port: int, tokens: int, stream: bool, seconds: float) -> LoopResults:
    numbers = itertools.count()

    def request() -> bytes:
        body = {
            "id": f"bench-{tokens}-{next(numbers)}", "tenant": "bench", "deadline_ms": 10_000, "max_tokens": tokens,
            "prompt": "What does a weir do to a river that is in flood?", "stream": stream, "ignore_eos": True,
        }  # fmt: skip
        return post(port, "/generate", json.dumps(body).encode())

    results = await closed_loop(port, request, CLIENTS, seconds)
    results.only(200)
    return results
