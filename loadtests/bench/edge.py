"""The cost of the HTTP layer: CPU time a request of a service whose handlers do almost nothing.

User and system time of the server's process. The router's own cost minus this is that of admission, retrieval and
workers. To compare two checkouts, run it in each of them in turn.

Run: python -m loadtests.bench edge      the measured process is `python -m loadtests.bench.edge PORT`
"""

from __future__ import annotations

import sys

from loadtests.bench.bare import bare
from loadtests.bench.stand import CONNECTIONS, ROUTE, chat
from loadtests.cluster.processes import free_ports, started
from loadtests.cluster.usage import cores, cpu_s, pinned
from loadtests.load.closed import closed_number
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


async def measure() -> list[Figure]:
    server_core, other_core = cores()
    (port,) = free_ports(1)
    ready = f"http://127.0.0.1:{port}/health/ready"
    with pinned(other_core):
        async with started("loadtests.bench.edge", str(port), ready=ready, cores=server_core) as process:
            figures = [Figure(kind, await cost_us(port, process.pid, kind), UNIT) for kind in KINDS]
        async with bare("asgi") as (port, process):
            cost = await cost_us(port, process.pid, "/")
            figures.append(Figure("for scale: an empty ASGI app under uvicorn", cost, UNIT))
    return figures


async def cost_us(port: int, pid: int, path: str) -> float:
    """Microseconds of CPU time that one request costs the server."""
    request = chat(port).replace(ROUTE.encode(), path.encode(), 1)
    await closed_number(port, [request], CONNECTIONS, REQUESTS // 10)
    cpu_before_s = cpu_s(pid)
    await closed_number(port, [request], CONNECTIONS, REQUESTS)
    return (cpu_s(pid) - cpu_before_s) / REQUESTS * 1e6


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
