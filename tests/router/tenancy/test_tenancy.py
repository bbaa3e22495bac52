"""What a tenant's account means on the live path: whose it is, its class, its limits, and what strangers cost."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.router.telemetry.journal import MAX_RECORDS
from services.runtime.apikey import digest, written
from tests.router.rig import FakeRetrieval, FakeWorker, Stand, answer, error_of, hang, passage, standing
from tests.runtime.rig import until
from tests.virtual import run

CLASSES = [{"name": "interactive", "weight": 8}, {"name": "batch", "weight": 1}]


def tenants(folder: Path, classes: list[dict[str, Any]] | None = None, **known: dict[str, Any]) -> Path:
    entries = [{"id": id, "keys": [written(digest(f"key-of-{id}".encode()))], **more} for id, more in known.items()]
    file = folder / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": entries, **({"classes": classes} if classes else {})}))
    return file


def key(id: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{id}", **{name.replace("_", "-"): value for name, value in more.items()}}


def sized(stand: Stand) -> tuple[int, ...]:
    """How much is remembered of tenants: accounts, lines, and lines' ends."""
    drr = stand.dispatcher.scheduler.drr
    flows = [flow for tenant in drr.tenants.values() for flow in tenant.all_flows()]
    return len(drr.tenants), len(flows), len(stand.dispatcher.waiting), len(stand.dispatcher.fleet._lasts)


def test_whose_it_is_goes_down_to_retrieval_and_worker_and_no_header_or_body_changes_it(tmp_path: Path) -> None:
    async def main() -> None:
        worker, retrieval = FakeWorker(answer), FakeRetrieval([passage(1)])
        async with standing(worker, retrieval=retrieval, tenants_file=tenants(tmp_path, a={}, b={})) as stand:
            told = await stand.post("/ask", {"query": "hi", "tenant": "b"}, **key("a", x_tenant="b"))
            assert told.status_code == 200
            assert [asked.tenant for asked in retrieval.asked] == [asked.tenant for asked in worker.asked] == ["a"]
            assert set(stand.dispatcher.scheduler.drr.tenants) == {"a", "b"}

    run(main)


@pytest.mark.parametrize("header", ["x_weir_class", "x_llm_d_inference_objective", "x_smg_priority"])
def test_a_class_may_be_lowered_and_never_raised(header: str, tmp_path: Path) -> None:
    async def main() -> None:
        of_a_class = {name: {"class": name} for name in ("interactive", "batch")}
        file = tenants(tmp_path, CLASSES, **of_a_class)
        async with standing(FakeWorker(hang, slots=1), tenants_file=file) as stand:
            expected = {
                ("interactive", "batch"): "batch", ("batch", "interactive"): "batch",
                ("interactive", "unheard-of"): "interactive", ("batch", "batch"): "batch",
            }  # fmt: skip
            asking = [asyncio.create_task(stand.chat(headers=key("batch")))]
            await until(lambda: stand.workers[0].running == 1)
            for own, asked in expected:
                asking.append(asyncio.create_task(stand.chat(headers=key(own, **{header: asked}), max_tokens=1)))
                await until(lambda: len(stand.dispatcher.waiting) == len(asking) - 1)
            stood = {turn.sequence: turn.flow.node.name for turn in stand.dispatcher.waiting}
            assert [stood[sequence] for sequence in sorted(stood)] == list(expected.values())
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    run(main)


def test_a_paused_tenant_is_told_so_on_every_route_and_what_it_began_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def wait(*parts: Any) -> None:
            await gate.wait()
            await answer(*parts)

        one = standing(FakeWorker(wait, slots=1), retrieval=FakeRetrieval(), tenants_file=tenants(tmp_path, a={}, b={}))
        async with one as stand:
            began = [asyncio.create_task(stand.chat(headers=key("a"))) for _ in range(2)]
            await until(lambda: len(stand.dispatcher.waiting) == 1)
            assert (await stand.metrics.post("/admin/pause", content=b'{"tenant": "a"}')).status_code == 200
            for path, body in (
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                ("/ask", {"query": "hi", "stream": True}),
                ("/v1/embeddings", {"input": "hi"}),
            ):
                told = await stand.client.post(path, content=json.dumps(body).encode(), headers=key("a"))
                assert (told.status_code, error_of(told)["code"]) == (429, "yield"), path
                details = error_of(told)["details"]
                assert (details["reason"], details["scope"]) == ("paused", "tenant")
                assert int(told.headers["retry-after-ms"]) >= 1000
            gate.set()
            assert [told.status_code for told in await asyncio.gather(*began)] == [200, 200]
            assert (await stand.chat(headers=key("b"))).status_code == 200
            await stand.metrics.post("/admin/pause", content=b'{"tenant": "a", "paused": false}')
            assert (await stand.chat(headers=key("a"))).status_code == 200

    run(main)


def test_answers_are_cut_only_for_those_who_allow_it(tmp_path: Path) -> None:
    async def main() -> None:
        worker, retrieval = FakeWorker(answer), FakeRetrieval([passage(n) for n in range(1, 9)])
        file = tenants(tmp_path, whole={}, less={"degrade": True})
        async with standing(worker, retrieval=retrieval, tenants_file=file) as stand:
            ladder = stand.dispatcher.scheduler.settings.ladder
            level = next(number for number, rung in enumerate(ladder) if rung.max_tokens_share < 1)
            held = await stand.metrics.post("/admin/level", content=json.dumps({"level": level}).encode())
            assert held.status_code == 200
            body = {"query": "hi", "top_k": 8, "max_tokens": 100}
            whole = await stand.post("/ask", body, **key("whole"))
            less = await stand.post("/ask", body, **key("less"))
            assert (whole.headers["x-weir-level"], less.headers["x-weir-level"]) == ("0", str(level))
            assert [asked.max_tokens for asked in worker.asked] == [100, ladder[level].answer_tokens(100)]
            assert (whole.json()["level"], whole.json()["degraded"], whole.json()["source"]) == (0, [], "tier1")
            assert (less.json()["level"], less.json()["source"]) == (level, "degraded")
            assert less.headers["x-weir-degraded"].split(",") == less.json()["degraded"] != []
            assert retrieval.asked[0].top_k == 8

    run(main)


def test_a_tenants_own_limits_are_those_of_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        file = tenants(tmp_path, quick={"slo_ms": 5000}, narrow={"queue": {"cost_tokens": 100}}, wide={})
        async with standing(FakeWorker(hang, slots=1), tenants_file=file) as stand:
            holding = asyncio.create_task(stand.chat(headers=key("quick")))
            await until(lambda: stand.workers[0].running == 1)
            assert 4000 < stand.workers[0].asked[0].deadline_ms <= 5000
            never = await stand.chat(headers=key("narrow"), max_tokens=10_000)
            assert (error_of(never)["code"], error_of(never)["details"]["reason"]) == (
                "tenant_queue_full", "tenant_cost",
            )  # fmt: skip
            assert never.headers["x-should-retry"] == "false"
            assert "retry-after" not in never.headers
            holding.cancel()

    run(main)


def test_a_model_that_is_not_its_own_is_neither_listed_nor_its_first(tmp_path: Path) -> None:
    async def main() -> None:
        worker = FakeWorker(answer, models=("x", "y"))
        async with standing(worker, tenants_file=tenants(tmp_path, a={}, b={"models": ["y"]})) as stand:
            for id, models in {"a": ["x", "y"], "b": ["y"]}.items():
                listed = (await stand.client.get("/v1/models", headers=key(id))).json()["data"]
                assert [model["id"] for model in listed] == models
                assert (await stand.chat(headers=key(id))).json()["model"] == models[0]
            assert (await stand.client.get("/v1/models")).status_code == 401
            missing = await stand.chat(headers=key("b"), model="x")
            assert (missing.status_code, error_of(missing)["code"]) == (404, "model_not_found")

    run(main)


def test_a_rate_is_for_what_was_tried_and_its_hint_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        file = tenants(tmp_path, a={"rate": {"requests_per_s": 2}}, b={})
        found = FakeRetrieval()
        one = standing(FakeWorker(hang, slots=1), retrieval=found, tenants_file=file)
        async with one as stand:
            holding = asyncio.create_task(stand.chat(headers=key("b"), max_tokens=1))
            await until(lambda: stand.workers[0].running == 1)
            evicted = key("a", x_weir_deadline_ms="100")
            for _ in range(6):  # turned away from the line: as if they had not come
                assert error_of(await stand.chat(headers=evicted, max_tokens=1))["code"] == "deadline_expired"
            holding.cancel()
            await stand.all_returned()
            stand.workers[0].script = answer
            vectors = {"input": "hi", "model": "fake-embedder"}
            found.warming = True
            for _ in range(6):
                assert error_of(await stand.post("/v1/embeddings", vectors, **key("a")))["code"] == "no_capacity"
            found.warming = False
            assert (await stand.post("/v1/embeddings", vectors, **key("a"))).status_code == 200
            assert (await stand.chat(headers=key("a"))).status_code == 200
            told = await stand.chat(headers=key("a"))
            assert error_of(told)["code"] == "rate_limit_exceeded"
            await asyncio.sleep(int(told.headers["retry-after-ms"]) / 1000)
            assert (await stand.chat(headers=key("a"))).status_code == 200

    run(main)


def allocated() -> int:
    gc.collect()
    return sys.getallocatedblocks()


async def knock(port: int, count: int, name: str) -> dict[bytes, int]:
    """So many requests of invented people over one connection, several at a time: how often each status came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found: dict[bytes, int] = {}
    body = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"model":"none"}'
    for start in range(0, count, 10):
        for number in range(start, start + 10):
            who = f"{name}-{number}".encode()
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\nx-tenant: %b\r\n"
                b"content-length: %d\r\n\r\n%b" % (who, who, len(body), body)
            )
        for _ in range(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            found[head.split(b" ")[1]] = found.get(head.split(b" ")[1], 0) + 1
    writer.close()
    await writer.wait_closed()
    return found


@pytest.mark.parametrize("with_file", [True, False], ids=["by key", "by word"])
def test_ten_thousand_strangers_leave_nothing_behind(with_file: bool, tmp_path: Path) -> None:
    async def main() -> None:
        file = tenants(tmp_path, a={}) if with_file else None
        expected = b"401" if with_file else b"404"
        async with standing(FakeWorker(answer), tenants_file=file, max_lab_tenants=3) as stand:
            port = stand.router.bound_port
            assert await knock(port, 500, "early") == {expected: 500}
            assert (await stand.chat(headers=key("a"))).status_code == 200
            series = len((await stand.metrics.get("/metrics")).text.splitlines())
            before = sized(stand)
            assert await knock(port, MAX_RECORDS, "warm") == {expected: MAX_RECORDS}  # the journal is full
            blocks = allocated()
            assert await knock(port, 10_000, "late") == {expected: 10_000}
            assert allocated() - blocks < 1000, "not even one in ten is remembered"
            assert sized(stand) == before
            assert len((await stand.metrics.get("/metrics")).text.splitlines()) == series

    run(main)
