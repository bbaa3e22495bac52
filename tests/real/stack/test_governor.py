"""A governor before the real router and its workers: answers come back, refusals become yields, who leaves is let go.

client -> governor -> router -> worker
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from services.cli.child import dies_with_parent
from services.cli.governor import answers
from services.governor.client import Client, Effort, Exit, Reply, SendFailed, connect, result_of
from tests.real.stack.stand import ROOT, WITHIN_S, Part, Stand, soon, until

ENDLESS = {"prompt": "What is a weir?", "max_tokens": 8000, "ignore_eos": True}  # a quarter of a minute
SHORT = {"prompt": "What is a weir?", "max_tokens": 12, "ignore_eos": True, "seed": 7}


@contextlib.contextmanager
def governor_before(stand: Stand, router: Part, **settings: str) -> Iterator[Part]:
    """As `weir up` starts it: with the router's address, and no key."""
    part = stand._part("governor", "governor", {"GOVERNOR_UPSTREAM_URL": f"{router.url}/v1/completions", **settings})
    part.spawn()
    try:
        until(lambda: answers(address_of(part), WITHIN_S), "the governor answers")
        yield part
    finally:
        part.terminate()
        assert part.exit_code() == 0


def address_of(part: Part) -> str:
    return f"127.0.0.1:{part.port}"


def payload(asked: dict[str, Any]) -> bytes:
    return json.dumps(asked).encode()


@contextlib.asynccontextmanager
async def client_of(governor: Part, job: str, **effort: Any) -> AsyncIterator[tuple[Client, list[Reply]]]:
    """A client, and what it was told."""
    told: list[Reply] = []
    client = await connect(("127.0.0.1", governor.port), job=job, effort=Effort(**effort), show=told.append)
    try:
        yield client, told
    finally:
        client.close()


async def sent(client: Client, asked: dict[str, Any]) -> Reply:
    return await client.send(payload(asked), chunk_bytes=16, content_type="application/json")


def test_a_payload_comes_back_as_the_routers_answer_to_it(stand: Stand) -> None:
    async def main(governor: Part) -> None:
        async with client_of(governor, "J_short") as (client, _):
            reply = await sent(client, SHORT)
        body = result_of(reply)
        assert (reply["status"], reply["result"]["status"]) == ("done", 200), reply
        assert body is not None
        through = json.loads(body)
        direct = stand.http.post(f"{stand.router.url}/v1/completions", json=SHORT).json()
        assert through["usage"] == direct["usage"]
        assert through["choices"] == direct["choices"]
        assert through["usage"]["completion_tokens"] == SHORT["max_tokens"]

    served = stand.router.metrics("weir_requests_total", "outcome").get("served", 0)
    with governor_before(stand, stand.router) as governor:
        asyncio.run(main(governor))
        assert governor.metrics("weir_governor_jobs_total", "outcome") == {"done": 1}
    assert stand.router.metrics("weir_requests_total", "outcome")["served"] == served + 2


def test_what_the_router_finds_wrong_is_told_with_its_own_words(stand: Stand) -> None:
    async def main(governor: Part) -> None:
        async with client_of(governor, "J_wrong") as (client, _):
            reply = await sent(client, {"prompt": "x", "temperature": 9})
        body = result_of(reply)
        assert (reply["status"], reply["need_code"], reply["result"]["status"]) == ("abort", "backend_error", 400)
        assert body is not None
        assert "temperature" in json.loads(body)["error"]["message"]

    with governor_before(stand, stand.router) as governor:
        asyncio.run(main(governor))


def test_a_router_that_is_full_makes_a_yield_and_the_same_chunk_runs_once_it_is_not(stand: Stand) -> None:
    """One may run there and one may wait: the third has a slot of the governor's, and is told to come back."""

    async def main(governor: Part, router: Part) -> None:
        async with (
            client_of(governor, "J_runs") as (runs, _),
            client_of(governor, "J_waits") as (waits, _),
            client_of(governor, "J_third") as (third, told),
        ):
            first = asyncio.create_task(sent(runs, ENDLESS))
            await soon(lambda: router.metric("weir_inflight") == 1, "the first runs")
            second = asyncio.create_task(sent(waits, ENDLESS))
            await soon(lambda: router.metric("weir_queue_depth") == 1, "the second waits")
            asked = asyncio.create_task(sent(third, SHORT))
            await soon(lambda: any(reply["status"] == "yield" for reply in told), "the third is told to come back")
            assert governor.metric("heptamini_backend_cap") == 4  # it was not the governor that was full
            assert all(reply["retry_hint_ms"] >= 50 for reply in told if reply["status"] == "yield")
            for client, task in ((runs, first), (waits, second)):
                client.close()
                with pytest.raises(SendFailed):
                    await task
            assert (await asked)["status"] == "done"

    narrow = {"MAX_INFLIGHT": "1", "MAX_QUEUE_SIZE": "1", "TENANT_QUEUE_SIZE": "1"}
    with stand.another_router("narrow", **narrow) as router, governor_before(stand, router) as governor:
        asyncio.run(main(governor, router))
        outcomes = governor.metrics("weir_governor_jobs_total", "outcome")
        assert (outcomes["done"], outcomes["cancelled"]) == (1, 2)
        assert outcomes["refused"] == governor.metric("heptamini_yielded_total") >= 1
        assert router.metrics("weir_requests_total", "outcome")["client_gone"] == 2


def test_a_client_that_is_killed_frees_its_slot_and_its_workers(stand: Stand) -> None:
    gone = stand.router.metrics("weir_requests_total", "outcome").get("client_gone", 0)
    (stand.folder / "endless.json").write_bytes(payload(ENDLESS))
    settings = {"GOVERNOR_MAX_INFLIGHT": "1", "HTTP_TIMEOUT_S": "600", "GOVERNOR_KEEPALIVE_S": "600"}
    with governor_before(stand, stand.router, **settings) as governor:
        words = ["services.governor.client", "endless.json", "--addr", address_of(governor), "--deadline-s", "100"]
        with subprocess.Popen(
            [sys.executable, "-m", *words], cwd=stand.folder, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            preexec_fn=dies_with_parent(signal.SIGKILL),
        ) as client:  # fmt: skip
            until(lambda: stand.router.metric("weir_inflight") == 1, "its request runs at the router")
            assert governor.metric("heptamini_server_health") == 0
            (running,) = stand.http.get(f"http://127.0.0.1:{stand.router.metrics_port}/admin/state").json()["running"]
            assert 30_000 < running["deadline_in_ms"] <= 100_000  # the client's own, not the router's default
            client.kill()
        until(lambda: stand.router.metric("weir_inflight") == 0, "the router has let it go")
        until(lambda: governor.metric("heptamini_server_health") == 1, "the slot is free")
        assert stand.router.metrics("weir_requests_total", "outcome")["client_gone"] == gone + 1
        assert governor.metrics("weir_governor_jobs_total", "outcome") == {"cancelled": 1}
        assert all(worker.metric("weir_worker_inflight") == 0 for worker in stand.workers)

        async def ask() -> Exit:
            async with client_of(governor, "J_ping") as (asking, _):
                return await asking.ping()

        assert asyncio.run(ask()) is Exit.DONE
