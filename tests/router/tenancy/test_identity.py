"""Identity over real sockets: keys, rates, models and reloads as a client meets them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.runtime.apikey import digest, written
from tests.router.rig import FakeWorker, Stand, answer, error_of, standing
from tests.runtime.rig import until
from tests.virtual import run


def entry(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "keys": [written(digest(f"key-of-{id}".encode()))], **more}


def listed(folder: Path, *entries: dict[str, Any], **more: Any) -> Path:
    file = folder / "tenants.yaml"
    file.write_text(yaml.safe_dump({**more, "tenants": list(entries)}))
    return file


def as_tenant(id: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{id}", **more}


async def counted_by_tenant(stand: Stand) -> dict[str, float]:
    """weir_requests_total by tenant."""
    found: dict[str, float] = {}
    for labels, value in await stand.samples("weir_requests_total"):
        tenant = labels.split('tenant="')[1].split('"')[0]
        found[tenant] = found.get(tenant, 0) + value
    return found


async def series(stand: Stand) -> set[str]:
    text = (await stand.metrics.get("/metrics")).text
    lines = (line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#"))
    return {line for line in lines if "tenant=" in line}


def test_the_key_decides_and_is_counted_whatever_header_and_body_say(tmp_path: Path) -> None:
    async def main() -> None:
        worker = FakeWorker(answer)
        async with standing(worker, tenants_file=listed(tmp_path, entry("a"), entry("b"))) as stand:
            told = await stand.chat(headers=as_tenant("a", **{"x-tenant": "b"}), tenant="b")
            assert told.status_code == 200
            assert [asked.tenant for asked in worker.asked] == ["a"]
            assert await counted_by_tenant(stand) == {"a": 1, "b": 0, "other": 0}

    run(main)


def test_a_stranger_gets_a_401_on_every_route_and_reaches_no_worker(tmp_path: Path) -> None:
    async def main() -> None:
        worker = FakeWorker(answer)
        async with standing(worker, tenants_file=listed(tmp_path, entry("a"))) as stand:
            bodies = {
                "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
                "/v1/completions": {"prompt": "hi"},
                "/v1/embeddings": {"input": "hi", "model": "m"},
                "/ask": {"query": "hi", "tenant": "a"},
            }
            for path, body in bodies.items():
                for headers in ({}, {"authorization": "Bearer key-of-b"}, {"x-tenant": "a"}):
                    told = await stand.client.post(path, content=json.dumps(body).encode(), headers=headers)
                    error = error_of(told)
                    assert (told.status_code, error["code"]) == (401, "invalid_api_key"), path
                    assert told.headers["www-authenticate"] == "Bearer"
                    assert told.headers["x-should-retry"] == "false"
            assert worker.asked == []
            assert await counted_by_tenant(stand) == {"a": 0, "other": 12}

    run(main)


@pytest.mark.parametrize("with_file", [True, False])
def test_invented_identities_add_no_metric_series(with_file: bool, tmp_path: Path) -> None:
    async def main() -> None:
        file = listed(tmp_path, entry("a")) if with_file else None
        async with standing(FakeWorker(answer), tenants_file=file, max_lab_tenants=3) as stand:
            for name in ("a", "b", "c", "d"):
                await stand.chat(headers={**as_tenant("a"), "x-tenant": name})
            await stand.chat(headers={"authorization": "Bearer the-first", "x-tenant": "the-first"})
            before = await series(stand)
            for number in range(200):
                name = f"invented-{number}"
                headers = {"authorization": f"Bearer {name}", "x-tenant": name}
                told = await stand.chat(headers=headers, tenant=name)
                assert told.status_code == (401 if with_file else 200)
            assert await series(stand) == before

    run(main)


def test_over_its_rate_a_tenant_is_told_when_to_come_back_and_others_are_served(tmp_path: Path) -> None:
    async def main() -> None:
        file = listed(tmp_path, entry("a", rate={"requests_per_s": 0.01}), entry("b"))
        async with standing(FakeWorker(answer), tenants_file=file) as stand:
            assert (await stand.chat(headers=as_tenant("a"))).status_code == 200
            told = await stand.chat(headers=as_tenant("a"))
            error = error_of(told)
            assert (told.status_code, error["code"]) == (429, "rate_limit_exceeded")
            assert (error["details"]["scope"], told.headers["x-should-retry"]) == ("tenant", "true")
            assert 0 < int(told.headers["retry-after-ms"]) <= 30_000
            assert (await stand.chat(headers=as_tenant("b"))).status_code == 200

    run(main)


def test_what_is_refused_for_another_reason_uses_no_rate(tmp_path: Path) -> None:
    async def main() -> None:
        file = listed(tmp_path, entry("a", rate={"requests_per_s": 0.01}))
        worker = FakeWorker(answer, draining=True)
        async with standing(worker, tenants_file=file) as stand:
            for _ in range(3):
                assert error_of(await stand.chat(headers=as_tenant("a")))["code"] == "no_capacity"
            worker.draining = False
            while (await stand.chat(headers=as_tenant("a"))).status_code != 200:
                await asyncio.sleep(0.01)
            assert error_of(await stand.chat(headers=as_tenant("a")))["code"] == "rate_limit_exceeded"

    run(main)


def test_a_model_that_is_not_this_tenants_looks_as_if_it_were_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        file = listed(tmp_path, entry("a", models=["mine"]), entry("b"))
        async with standing(FakeWorker(answer, models=("theirs", "mine")), tenants_file=file) as stand:
            told = await stand.chat(headers=as_tenant("a"), model="theirs")
            absent = await stand.chat(headers=as_tenant("a"), model="absent")
            assert (told.status_code, error_of(told)["code"]) == (404, "model_not_found")
            assert error_of(told)["message"].replace("theirs", "absent") == error_of(absent)["message"]
            assert (await stand.chat(headers=as_tenant("a"))).json()["model"] == "mine"
            assert (await stand.chat(headers=as_tenant("b"), model="theirs")).status_code == 200

    run(main)


def hang_until(event: asyncio.Event) -> Any:
    async def script(exchange: Any, request: Any, worker: FakeWorker) -> None:
        await event.wait()
        await answer(exchange, request, worker)

    return script


def test_a_reload_lets_in_who_joined_refuses_who_left_and_drops_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        go = asyncio.Event()
        worker = FakeWorker(hang_until(go))
        async with standing(worker, tenants_file=listed(tmp_path, entry("a"), entry("b"))) as stand:
            running = asyncio.create_task(stand.chat(headers=as_tenant("b")))
            await until(lambda: worker.running == 1, "b runs")
            listed(
                tmp_path,
                entry("a", weight=3, **{"class": "slow"}),
                entry("c"),
                classes=[{"name": "slow"}, {"name": "default"}],
            )
            assert stand.router.reload is not None
            stand.router.reload()
            while (await stand.chat(headers=as_tenant("b"), model="absent")).status_code == 404:
                await asyncio.sleep(0.01)
            go.set()
            assert (await running).status_code == 200
            for id in ("a", "c"):
                assert (await stand.chat(headers=as_tenant(id))).status_code == 200

    run(main)


EXAMPLE = f"tenants: [{{id: acme, keys: ['{written(digest(b'weir_example_acme'))}']}}]"


@pytest.mark.parametrize("broken", ["tenants: [", "tenants: []", EXAMPLE], ids=["no YAML", "nobody", "an example key"])
def test_a_file_with_a_fault_changes_nothing(broken: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        file = listed(tmp_path, entry("a"))
        async with standing(FakeWorker(answer), tenants_file=file, host="0.0.0.0") as stand:
            file.write_text(broken)
            assert stand.router.reload is not None
            stand.router.reload()
            said = ""
            while "TENANTS_FILE rejected" not in said:
                await asyncio.sleep(0.01)
                said += capfd.readouterr().out
            assert (await stand.chat(headers=as_tenant("a"))).status_code == 200
            told = await stand.chat(headers={"authorization": "Bearer weir_example_acme"})
            assert told.status_code == 401

    run(main)
