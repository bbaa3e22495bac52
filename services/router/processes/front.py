"""The parent's metrics listener: joined metrics, health, and /admin for all processes (docs/operations/admin.md).

/metrics             one page for all processes (`pages`)
/health              the parent runs
/health/ready        a process is ready
GET /admin/state     each process's own state
POST /admin/restart  replace the processes, one after the other
other /admin         asked of all processes, and answered as one (`answers`)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from services.core.outcome import Outcome
from services.router.operating.adminkey import AdminKey
from services.router.processes.answers import Answer, agreed
from services.router.processes.pages import JoinedPages
from services.router.processes.plan import Plan, ProcessState
from services.runtime.errors import BadInput, WeirError, place_of
from services.runtime.exposition import page_of
from services.runtime.health import LIVE, READY
from services.runtime.http import Exchange, become_task
from services.runtime.internal import is_health
from services.runtime.internaltoken import authorization
from services.runtime.keepalive import Pool
from services.runtime.log import Log
from services.runtime.telemetry import new_registry
from services.runtime.upstream import UpstreamError

ANSWER_WITHIN_S = 5.0
MAX_PAGE_BYTES = 268_435_456
CONNECTIONS = 16  # to each process
PARENT = "parent"
"""Value of the label `process` for the parent's own memory and descriptors."""


def is_open(path: str) -> bool:
    """Whether the listener's own token does not protect this path: /admin has its own key."""
    return is_health(path) or path.startswith("/admin/")


class Front:
    """`ports`: of each process's metrics listener, on loopback. `pid_of`: of the running process, or None."""

    always = b""

    def __init__(
        self,
        plan: Plan,
        ports: list[int],
        *,
        restart: Callable[[], None],
        pid_of: Callable[[int], int | None],
        key: AdminKey,
        metrics_token: bytes,
        admin_token: bytes,
        log: Log,
    ) -> None:
        self._plan = plan
        self._ports = ports
        self._pools = [Pool(f"http://127.0.0.1:{port}", max_connections=CONNECTIONS, max_idle=0) for port in ports]
        self._restart = restart
        self._pid_of = pid_of
        self._key = key
        self._metrics_headers = authorization(metrics_token)
        self._admin_headers = authorization(admin_token)
        self._log = log
        self._registry = new_registry()
        self._joined = JoinedPages()

    async def handle(self, exchange: Exchange) -> None:
        await become_task()
        try:
            await self._answer(exchange)
        except WeirError as error:
            await exchange.refuse(error)
        except Exception as error:
            self._log.error("a handler failed", path=exchange.path[:200], traceback=place_of(error))
        finally:
            exchange.ended()

    async def look(self, index: int) -> None:
        """Read the metrics of a process; it keeps its last page where there is no answer."""
        starts = self._plan.children[index].starts
        answer = await self._ask(index, b"GET", "/metrics", self._metrics_headers)
        if answer.status == 200:
            self._joined.take(str(index), starts, answer.body.decode("utf-8"))
        else:
            self._log.warning(
                "no metrics of a router process", process=index, why=answer.body.decode("utf-8", "replace")
            )

    async def _answer(self, exchange: Exchange) -> None:
        path, method = exchange.path, exchange.method
        if path.startswith("/admin/"):
            await self._admin(exchange)
        elif path.startswith("/console"):
            shown = ", ".join(f"http://127.0.0.1:{port}/console" for port in self._ports)
            raise BadInput(
                f"the console shows one process, at its own address on the router's machine: {shown}",
                status=404, code="not_found",
            )  # fmt: skip
        elif path not in ("/metrics", LIVE, READY):
            raise BadInput(
                f"no such route; the routes are /metrics, {LIVE}, {READY}, /admin", status=404, code="not_found"
            )
        elif method not in ("GET", "HEAD"):
            raise BadInput("use GET", status=405, code="method_not_allowed")
        elif path == "/metrics":
            await exchange.reply(200, await self._page(), content_type=CONTENT_TYPE_LATEST.encode("ascii"))
        else:
            await self._health(exchange)

    async def _page(self) -> bytes:
        alive = self._answering()
        await asyncio.gather(*map(self.look, alive))
        self._joined.take(PARENT, 1, page_of(self._registry).decode("utf-8"))
        return (self._joined.page([*map(str, alive), PARENT]) + self._own_lines()).encode("utf-8")

    def _own_lines(self) -> str:
        """Metrics of the processes as processes."""
        children = list(enumerate(self._plan.children))
        ready = [
            f'weir_router_process_ready{{process="{index}"}} {float(s.state is ProcessState.READY)}'
            for index, s in children
        ]
        starts = [f'weir_router_process_starts_total{{process="{index}"}} {float(s.starts)}' for index, s in children]
        return "\n".join([
            "# HELP weir_router_process_ready 1 while a router process accepts connections.",
            "# TYPE weir_router_process_ready gauge",
            *ready,
            "# HELP weir_router_process_starts_total Starts of a router process.",
            "# TYPE weir_router_process_starts_total counter",
            *starts,
            "",
        ])  # fmt: skip

    async def _health(self, exchange: Exchange) -> None:
        plan = self._plan
        ready, known = len(plan.of(ProcessState.READY)), {"service": "router", "processes": len(plan.children)}
        if exchange.path == LIVE:
            status, state = 200, "ok"
        elif plan.stopping:
            status, state = 503, "draining"
        else:
            status, state = (200, "ready") if ready else (503, "not ready")
        await exchange.reply(status, msgspec.json.encode({"status": state, **known, "ready": ready}))

    async def _admin(self, exchange: Exchange) -> None:
        if exchange.header(b"origin") is not None:
            raise BadInput("/admin does not accept requests from web pages", status=403, code="forbidden")
        self._key.check(exchange)
        asked = (exchange.method, exchange.path)
        if asked == ("GET", "/admin/state"):
            answer = await self._states()
        elif asked == ("POST", "/admin/restart"):
            answer = self._begin_restart()
        else:
            answer = await self._ask_all(exchange)
        self._log.info("admin request", method=exchange.method, path=exchange.path[:200], status=answer.status)
        await exchange.reply(answer.status, answer.body)

    async def _states(self) -> Answer:
        alive = self._answering()
        answers = await asyncio.gather(
            *(self._ask(index, b"GET", "/admin/state", self._admin_headers) for index in alive)
        )
        states = dict(zip(alive, answers, strict=True))
        return Answer(
            200,
            msgspec.json.encode(
                {"processes": [self._child(index, states.get(index)) for index in range(len(self._ports))]}
            ),
        )

    def _child(self, index: int, answer: Answer | None) -> dict[str, Any]:
        child = self._plan.children[index]
        return {
            "process": index,
            "state": str(child.state),
            "pid": self._pid_of(index),
            "starts": child.starts,
            "metrics_port": self._ports[index],
            "router": msgspec.Raw(answer.body) if answer is not None and answer.status == 200 else None,
        }

    def _begin_restart(self) -> Answer:
        if self._plan.stopping or self._plan.restarting:
            raise BadInput("a restart is under way, or the router drains", status=409, code="conflict")
        self._restart()
        return Answer(202, msgspec.json.encode({"restarting": len(self._ports)}))

    async def _ask_all(self, exchange: Exchange) -> Answer:
        """All processes or none are asked: a change that a starting process misses would be half a change."""
        lacking = [index for index, child in enumerate(self._plan.children) if child.state is not ProcessState.READY]
        if lacking and exchange.method != "GET":
            names = ", ".join(map(str, lacking))
            raise WeirError(Outcome.NO_CAPACITY, f"not ready: process {names}; nothing was changed, try again soon")
        alive = self._answering()
        if not alive:
            raise WeirError(Outcome.NO_CAPACITY, "no router process answers now; try again soon")
        headers = (*self._admin_headers, (b"content-type", exchange.header(b"content-type") or b"application/json"))
        answers = await asyncio.gather(
            *(
                self._ask(index, exchange.method.encode("ascii"), quote(exchange.path), headers, exchange.body)
                for index in alive
            )
        )
        return agreed(dict(zip(alive, answers, strict=True)))

    async def _ask(
        self, index: int, method: bytes, path: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes = b""
    ) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                reply = await self._pools[index].request(method, path.encode("ascii"), body=body, headers=list(headers))
                with reply:
                    return Answer(reply.status, await reply.read(MAX_PAGE_BYTES))
        except TimeoutError:
            return Answer(0, b"no answer in %g s" % ANSWER_WITHIN_S)
        except UpstreamError as error:
            return Answer(0, str(error).encode())

    def _answering(self) -> list[int]:
        """Processes whose metrics listener answers."""
        return [
            index
            for index, child in enumerate(self._plan.children)
            if child.state in (ProcessState.READY, ProcessState.LEAVING)
        ]
