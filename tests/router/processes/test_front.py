"""The parent's listener before two real routers, in virtual time: metrics, health, and switches for all of them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx2

from services.router.operating.adminkey import AdminKey
from services.router.processes.front import Front, is_open
from services.router.processes.plan import Plan, ProcessState
from services.runtime.drain import Drain
from services.runtime.guard import GuardLimits
from services.runtime.internal import inner_checks
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process
from services.runtime.telemetry import metrics_app, new_registry
from tests.router.rig import FakeWorker, Stand, answer, client_of, samples_in, standing
from tests.virtual import run, running_here

TOKEN = b"a-token-of-the-operator"


@dataclass
class House:
    """Two routers, and the front before them."""

    routers: list[Stand]
    plan: Plan
    front: Front
    client: httpx2.AsyncClient
    restarts: list[None] = field(default_factory=list)

    async def page(self) -> str:
        return (await self.client.get("/metrics")).text


@asynccontextmanager
async def house(token: bytes = b"") -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(standing(FakeWorker(answer))) for _ in range(2)]
        plan = Plan(2, leave_s=10.0, hand_over_s=20.0)
        plan.tick(0.0)
        for index in range(2):
            plan.ready(index, 0.0)
        restarts: list[None] = []
        log = Log("router", "ERROR", stream=io.BytesIO())
        stack.callback(log.close)
        front = Front(
            plan,
            [router.router.bound_metrics_port for router in routers],
            restart=lambda: restarts.append(None),
            pid_of=lambda index: 1000 + index,
            key=AdminKey("127.0.0.1", token, log),
            metrics_token=b"",
            admin_token=token,
            log=log,
        )
        listener = HttpListener(
            front, GuardLimits(), 30.0, checks=inner_checks("127.0.0.1", token=token, is_open=is_open)
        )
        process = Process(
            name="parent", listener=listener, metrics=metrics_app(new_registry(), log), log=log, drain=Drain(),
            host="127.0.0.1", port=0, metrics_host="127.0.0.1", metrics_port=0, drain_timeout_s=0.1,
        )  # fmt: skip
        await stack.enter_async_context(running_here(process))
        client = await stack.enter_async_context(client_of(process.bound_port))
        yield House(routers, plan, front, client, restarts)


def test_metrics_are_sums_over_the_processes() -> None:
    async def main() -> None:
        async with house() as made:
            for router, times in zip(made.routers, (2, 3), strict=True):
                for _ in range(times):
                    assert (await router.chat()).status_code == 200
            page = await made.page()
            served = [value for labels, value in samples_in(page, "weir_requests_total") if '"served"' in labels]
            assert sum(served) == 5
            assert samples_in(page, "weir_inflight_cap") == [("", 128.0)]
            healthy = [labels for labels, _ in samples_in(page, "weir_worker_healthy")]
            assert [label.split("process=")[1] for label in healthy] == ['"0"}', '"1"}']
            assert samples_in(page, "weir_router_process_ready") == [('{process="0"}', 1.0), ('{process="1"}', 1.0)]
            assert samples_in(page, "weir_router_process_starts_total") == [
                ('{process="0"}', 1.0),
                ('{process="1"}', 1.0),
            ]

    run(main)


def test_it_is_ready_while_one_process_is() -> None:
    async def main() -> None:
        async with house() as made:
            assert (await made.client.get("/health")).status_code == 200
            made.plan.children[0].state = ProcessState.WAITING
            found = await made.client.get("/health/ready")
            assert (found.status_code, found.json()["ready"]) == (200, 1)
            made.plan.children[1].state = ProcessState.STARTING
            assert (await made.client.get("/health/ready")).status_code == 503
            made.plan.stop(0.0)
            assert (await made.client.get("/health/ready")).json()["status"] == "draining"

    run(main)


def test_a_switch_is_turned_in_all_processes() -> None:
    async def main() -> None:
        async with house() as made:
            turned = await made.client.post("/admin/policy", json={"admission": False})
            assert (turned.status_code, turned.json()["admission"]) == (200, False)
            for router in made.routers:
                assert (await router.metrics.get("/admin/policy")).json()["admission"] is False
            assert (await made.client.get("/admin/policy")).json() == turned.json()

    run(main)


def test_while_one_is_not_ready_nothing_is_switched_anywhere() -> None:
    async def main() -> None:
        async with house() as made:
            made.plan.children[1].state = ProcessState.STARTING
            refused = await made.client.post("/admin/policy", json={"admission": False})
            assert refused.status_code == 503
            assert "process 1" in refused.json()["error"]["message"]
            assert (await made.routers[0].metrics.get("/admin/policy")).json()["admission"] is True

    run(main)


def test_processes_that_differ_are_named() -> None:
    async def main() -> None:
        async with house() as made:
            await made.routers[1].metrics.post("/admin/policy", content=b'{"fairness": false}')
            found = await made.client.get("/admin/policy")
            assert found.status_code == 409
            assert [one["answer"]["fairness"] for one in found.json()["processes"]] == [True, False]

    run(main)


def test_a_fault_of_the_request_is_answered_as_one_router_does() -> None:
    async def main() -> None:
        async with house() as made:
            alone = await made.routers[0].metrics.post("/admin/pause", content=b'{"tenant": 7}')
            all = await made.client.post("/admin/pause", content=b'{"tenant": 7}')
            assert (all.status_code, all.json()) == (alone.status_code, alone.json())
            assert (await made.client.get("/admin/no%20such%0d%0athing")).status_code == 404

    run(main)


def test_the_state_is_that_of_each_process() -> None:
    async def main() -> None:
        async with house() as made:
            made.plan.children[1].state = ProcessState.WAITING
            first, second = (await made.client.get("/admin/state")).json()["processes"]
            assert (first["state"], first["pid"], first["router"]["inflight"]["cap"]) == ("ready", 1000, 64)
            assert (second["state"], second["router"]) == ("waiting", None)
            assert first["metrics_port"] == made.routers[0].router.bound_metrics_port

    run(main)


def test_a_restart_is_begun_once() -> None:
    async def main() -> None:
        async with house() as made:
            assert (await made.client.post("/admin/restart")).status_code == 202
            assert len(made.restarts) == 1
            made.plan.restart(0.0)
            assert (await made.client.post("/admin/restart")).status_code == 409
            assert len(made.restarts) == 1

    run(main)


def test_admin_needs_the_key_and_no_page_may_ask() -> None:
    async def main() -> None:
        async with house(TOKEN) as made:
            for method, path in (("GET", "/admin/state"), ("POST", "/admin/restart"), ("POST", "/admin/policy")):
                assert (await made.client.request(method, path)).status_code == 401
            shown = {"authorization": f"Bearer {TOKEN.decode()}"}
            assert (await made.client.get("/admin/state", headers=shown)).status_code == 200
            page = await made.client.get("/admin/state", headers={**shown, "origin": "http://127.0.0.1"})
            assert page.status_code == 403
            assert (await made.client.get("/metrics")).status_code == 401
            assert (await made.client.get("/health/ready")).status_code == 200
            assert made.restarts == []

    run(main)


def test_the_console_says_where_it_is() -> None:
    async def main() -> None:
        async with house() as made:
            found = await made.client.get("/console")
            assert found.status_code == 404
            port = made.routers[1].router.bound_metrics_port
            assert f"http://127.0.0.1:{port}/console" in found.json()["error"]["message"]

    run(main)


def test_a_process_that_hangs_holds_up_no_page_for_long() -> None:
    async def main() -> None:
        async with house() as made:
            async with asyncio.timeout(5):
                await made.page()
            await made.routers[1].chat()
            await made.page()
            made.front._ports[1] = 1
            made.front._pools[1].port = 1  # nobody listens there
            page = await made.page()
            served = [value for labels, value in samples_in(page, "weir_requests_total") if '"served"' in labels]
            assert sum(served) == 1, "its last figures are kept"

    run(main)
