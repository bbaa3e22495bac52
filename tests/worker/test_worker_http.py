"""A worker on the virtual clock: the wire, its refusals, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from services.runtime.serve import running
from services.worker.app import build
from services.worker.config import WorkerSettings
from tests.virtual import bind, run

QUESTION = (
    '<passage id="1" doc="docs/a.md">A weir holds a river at its level.</passage>\nQuestion: What does a weir hold?'
)


def ask(id: str = "a", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"id": id, "tenant": "t", "deadline_ms": 30_000, "max_tokens": 64, "messages": messages, **fields}


def endless(id: str) -> dict[str, Any]:
    return ask(id, max_tokens=16_000, ignore_eos=True)


def served(scenario: Callable[[httpx2.AsyncClient, httpx2.AsyncClient], Awaitable[None]], **settings: Any) -> None:
    """Run a scenario against a worker: with a client of its public port, and one of its metrics."""

    async def main() -> None:
        chosen = {"sim_time_scale": 0.05, "log_level": "ERROR", "drain_timeout_s": 1.0, **settings}
        process = build(WorkerSettings(_env_file=None, worker_port=0, metrics_port=0, **chosen))
        async with running(process, bind=bind):
            public = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{process.bound_port}")
            metrics = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{process.bound_metrics_port}")
            async with public, metrics:
                await scenario(public, metrics)
        process.log.close()

    run(main())


def test_a_worker_that_will_leave_tells_its_router_and_serves_on() -> None:
    async def main() -> None:
        process = build(WorkerSettings(_env_file=None, worker_port=0, metrics_port=0, log_level="ERROR"))
        async with running(process, bind=bind):
            client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{process.bound_port}")
            async with client:
                assert (await client.get("/status")).json()["draining"] is False
                process.drain.announce()
                assert (await client.get("/status")).json()["draining"] is True
                assert (await client.get("/health/ready")).status_code == 503
                answered = await client.post("/generate", json=ask("a", max_tokens=2))
                assert answered.status_code == 200
        process.log.close()

    run(main())


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


async def status(client: httpx2.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/status")).json()
    return found


def test_a_stream_is_tokens_and_then_one_done_and_equals_the_whole_answer():
    async def scenario(client, metrics):
        reply = await client.post("/generate", json=ask("a"))
        assert reply.headers["content-type"] == "application/x-ndjson"
        events = [json.loads(line) for line in reply.text.splitlines()]
        assert [event["event"] for event in events] == ["token"] * (len(events) - 1) + ["done"]
        text = "".join(event["text"] for event in events[:-1])
        assert "A weir holds a river at its level [1]." in text
        assert events[-1]["usage"]["completion_tokens"] == len(events) - 1
        whole = (await client.post("/generate", json=ask("b", stream=False))).json()
        assert (whole["event"], whole["text"], whole["finish_reason"]) == ("done", text, "stop")

    served(scenario)


def test_the_plain_form_answers_with_text_and_counts():
    async def scenario(client, metrics):
        reply = (await client.post("/infer", json={"prompt": "What is a weir?", "max_tokens": 7})).json()
        assert (reply["tokens"], reply["batch_size"], reply["source"]) == (7, 1, "inference")
        assert reply["text"].startswith("This is Weir")

    served(scenario)


WRONG = [
    ("/generate", ask(prompt="both"), 400, "prompt"),
    ("/generate", {**ask(), "messages": None}, 400, "prompt"),
    ("/generate", ask(prompt="", messages=None), 400, "prompt"),
    ("/generate", ask(stop=["ok", ""]), 400, "stop[1]"),
    ("/generate", ask(id="no spaces"), 400, "id"),
    ("/generate", ask(tenant="t" * 129), 400, "tenant"),
    ("/generate", ask(deadline_ms=0), 400, "deadline_ms"),
    ("/generate", ask(max_tokens=40_000), 400, "max_tokens"),
    ("/generate", ask(messages=[{"role": 1, "content": "x"}]), 400, "messages[0].role"),
    ("/generate", ask(model="llama"), 404, "model"),
    ("/infer", {"prompt": ""}, 400, "prompt"),
    ("/infer", {}, 400, "prompt"),
]


def test_bad_input_names_its_field():
    async def scenario(client, metrics):
        for path, body, code, param in WRONG:
            reply = await client.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (code, param)
            assert reply.headers["x-should-retry"] == "false"

    served(scenario)


def test_a_full_worker_yields_at_once_with_a_hint_and_a_cancel_frees_its_slot():
    async def scenario(client, metrics):
        tasks = [asyncio.create_task(client.post("/generate", json=endless(id))) for id in ("a", "b")]
        await until(lambda: holds(client, running=1, waiting=1))
        refused = await client.post("/generate", json=ask("c"))
        details = refused.json()["error"]["details"]
        assert (refused.status_code, details["status"], details["reason"]) == (429, "yield", "worker_queue_full")
        assert int(refused.headers["retry-after-ms"]) == details["retry_hint_ms"]
        assert (await client.post("/generate", json=endless("a"))).status_code == 409
        assert (await client.post("/cancel/b")).json() == {"id": "b", "cancelled": True}
        assert (await tasks[1]).status_code == 499
        assert (await client.post("/cancel/b")).json() == {"id": "b", "cancelled": False}
        await client.post("/cancel/a")
        events = (await tasks[0]).text.splitlines()
        assert json.loads(events[-1])["code"] == "client_gone"
        await until(lambda: holds(client, running=0, waiting=0))

    served(scenario, max_batch_size=1, worker_queue_size=1)


def test_it_announces_what_a_router_must_know_before_it_has_served_anything():
    async def scenario(client, metrics):
        idle = await status(client)
        assert (idle["slots"], idle["kv_tokens"], idle["kv_free_tokens"]) == (4, 8192, 8192)
        assert idle["step_ms"] == pytest.approx((30 + 4 * 0.5) * 0.1)
        assert idle["prefill_ms_per_token"] == pytest.approx(0.2 * 0.1)
        task = asyncio.create_task(client.post("/generate", json=ask("a", max_tokens=1000, ignore_eos=True)))
        await until(lambda: holds(client, running=1))
        running = await status(client)
        assert (running["kv_tokens"], running["kv_free_tokens"] < 8192) == (8192, True)
        await client.post("/cancel/a")
        await task

    served(
        scenario,
        max_batch_size=4,
        kv_tokens=8192,
        sim_step_ms=30,
        sim_prefill_ms_per_token=0.2,
        sim_time_scale=0.1,
    )


async def holds(client: httpx2.AsyncClient, **counts: int) -> bool:
    found = await status(client)
    return all(found[name] == count for name, count in counts.items())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(stream: bool):
    async def scenario(client, metrics):
        body = json.dumps({**endless("a"), "stream": stream}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await until(lambda: holds(client, running=1))
        writer.transport.abort()
        await until(lambda: holds(client, running=0))
        text = (await metrics.get("/metrics")).text
        assert 'weir_worker_requests_total{outcome="client_gone"} 1.0' in text

    served(scenario)


def test_a_client_that_never_reads_is_dropped_while_others_are_served():
    async def scenario(client, metrics):
        body = json.dumps(endless("a")).encode()
        deaf, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf._transport.pause_reading()
        writer.write(b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await until(lambda: holds(client, running=1))
        assert (await client.post("/generate", json=ask("b"))).status_code == 200
        await until(lambda: holds(client, running=0))
        text = (await metrics.get("/metrics")).text
        assert 'weir_wasted_seconds_total{reason="write_stall"} 0.0' not in text.splitlines()
        writer.close()

    served(scenario, sim_time_scale=0.001, stream_buffer_tokens=64)


def test_the_metrics_are_the_names_that_gateways_read():
    async def scenario(client, metrics):
        await client.post("/generate", json=ask("a"))
        text = (await metrics.get("/metrics")).text
        for line in (
            "weir_worker_slots 8.0",
            "weir_worker_inflight 0.0",
            "weir_worker_kv_bytes 0.0",
            "weir_worker_gpu_bytes 0.0",
            'vllm:num_requests_running{model_name="weir-sim"} 0.0',
            'vllm:num_requests_waiting{model_name="weir-sim"} 0.0',
            'vllm:kv_cache_usage_perc{model_name="weir-sim"} 0.0',
            'weir_worker_requests_total{outcome="served"} 1.0',
        ):
            assert line in text.splitlines()
        assert (await client.get("/metrics")).status_code == 404

    served(scenario)


def test_faults_of_a_simulated_worker_are_set_while_it_runs():
    async def scenario(public, metrics):
        assert (await metrics.get("/faults")).json()["garbage_share"] == 0
        assert (await metrics.put("/faults", json={"garbage_share": 1})).json()["garbage_share"] == 1
        broken = await public.post("/generate", json=ask("a"))
        with pytest.raises(ValueError, match=r"codec|JSON|Expecting"):
            json.loads(broken.content.splitlines()[-1])
        assert (await metrics.put("/faults", json={})).json()["garbage_share"] == 0
        whole = await public.post("/generate", json=ask("b"))
        assert json.loads(whole.text.splitlines()[-1])["event"] == "done"

    served(scenario)


@pytest.mark.parametrize(
    ("body", "named"),
    [({"slow_factor": 0.5}, "slow_factor"), ({"speed": 2}, "speed"), ({"poison": 7}, "poison"), ([], "object")],
)
def test_faults_that_make_no_sense_are_refused_and_named(body, named):
    async def scenario(public, metrics):
        reply = await metrics.put("/faults", json=body)
        assert (reply.status_code, named in reply.text) == (400, True)

    served(scenario)


def test_faults_are_not_for_web_pages_nor_for_names_from_outside():
    async def scenario(public, metrics):
        for headers, expected in (
            ({"origin": "http://evil.example"}, (403, "forbidden")),
            ({"host": "evil.example"}, (421, "misdirected_request")),
        ):
            reply = await metrics.put("/faults", json={"slow_factor": 9}, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == expected
        assert (await metrics.get("/faults")).json()["slow_factor"] == 1

    served(scenario)
