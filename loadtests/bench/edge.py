"""What the edge costs: CPU time of a service whose handlers do next to nothing, per request.

The difference between this and the router's own cost is what admission, retrieval and workers take. Time is the server
process's own, user and system, so that a busy machine changes it little. Run it in two checkouts in turn to compare
them.

Run: python -m loadtests.bench edge      what it measures is `python -m loadtests.bench.edge PORT`
"""

from __future__ import annotations

import asyncio
import sys

from loadtests.bench.client import Connection, Tally, connect, post
from loadtests.bench.machine import cores, cpu_s, pinned, process, until_ready
from loadtests.bench.router import CONNECTIONS, chat
from loadtests.report.figure import Figure
from services.core.outcome import Outcome
from services.runtime.api import new_api
from services.runtime.drain import Drain
from services.runtime.errors import Refused
from services.runtime.guard import GuardLimits
from services.runtime.health import Readiness, add_health
from services.runtime.http import Exchange, become_task
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process, run
from services.runtime.service import Service
from services.runtime.telemetry import metrics_app, new_registry

PORT = 28500
IDLE_S = 75.0
REQUESTS = 32_000
CHUNKS = 32
UNIT = "us of CPU a request"
_BODY = b'{"id":"stub","object":"chat.completion","choices":[{"message":{"content":"A weir holds a river."}}]}'


async def answer(exchange: Exchange) -> None:
    await exchange.reply(200, _BODY, headers=[(b"server-timing", b"queue;dur=0, total;dur=1.5")])


async def later(exchange: Exchange) -> None:
    await become_task()
    await answer(exchange)


async def refuse(exchange: Exchange) -> None:
    raise Refused(Outcome.YIELD, "every place is taken", reason="max_inflight", retry_hint_ms=120)


async def stream(exchange: Exchange) -> None:
    await exchange.start(200, b"text/event-stream")
    for _ in range(CHUNKS):
        await exchange.write(b"data: " + _BODY + b"\n\n")
    await exchange.end()


KINDS = {"/answer": answer, "/later": later, "/refuse": refuse, "/stream": stream}


def serve(port: int) -> int:
    def build() -> Process:
        log, drain = Log("edge"), Drain()
        api, hot = new_api("Edge", "For the bench."), {("POST", path): handler for path, handler in KINDS.items()}
        add_health(api, "edge", lambda: Readiness(True), drain)
        service = Service("edge", api, log=log, drain=drain, hot=hot)
        listener = HttpListener(service, GuardLimits(), IDLE_S)
        return Process(
            "edge", listener, metrics_app(new_registry(), log), log, drain, "127.0.0.1", port, "127.0.0.1", 0
        )

    return run(build)


async def ask(request: bytes, times: int) -> None:
    """So many requests over a few connections."""
    clients = [await connect(PORT, Tally()) for _ in range(CONNECTIONS)]

    async def one(client: Connection) -> None:
        for _ in range(times // CONNECTIONS):
            await client.ask(request)

    await asyncio.gather(*map(one, clients))
    for client in clients:
        client.transport.close()


async def measure(seconds: float) -> list[Figure]:
    """A figure for each kind of answer. `seconds` plays no part: so many requests take as long as they take."""
    server_core, other_core = cores()
    with pinned(other_core):
        async with process(["-m", "loadtests.bench.edge", str(PORT)], server_core) as pid:
            await until_ready(f"http://127.0.0.1:{PORT}/health/ready")
            figures = [Figure(kind, await cost_us(pid, kind), UNIT) for kind in KINDS]
        async with process(["-m", "loadtests.bench.bare", str(PORT)], server_core) as pid:
            await until_ready(f"http://127.0.0.1:{PORT}/")
            figures.append(Figure("for scale: an empty ASGI app under uvicorn", await cost_us(pid, "/"), UNIT))
    return figures


async def cost_us(pid: int, path: str) -> float:
    """What one request costs the server."""
    request = post(PORT, path, chat("fast"))
    await ask(request, REQUESTS // 10)
    before_s = cpu_s(pid)
    await ask(request, REQUESTS)
    return (cpu_s(pid) - before_s) / REQUESTS * 1e6


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
