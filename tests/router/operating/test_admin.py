"""The operator's side: what the router sees, and the few things that a person may turn, on a real listener."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from tests.router.rig import FakeWorker, Stand, answer, error_of, hang, standing
from tests.runtime.rig import until
from tests.virtual import run

ROUTES = (("GET", "/admin/state"), ("POST", "/admin/level"), ("POST", "/admin/pause"), ("POST", "/admin/drain"))


async def turn(stand: Stand, what: str, **body: Any) -> httpx2.Response:
    renamed = {name.rstrip("_"): value for name, value in body.items()}
    return await stand.metrics.post(f"/admin/{what}", content=json.dumps(renamed).encode())


async def state(stand: Stand) -> dict[str, Any]:
    found: dict[str, Any] = (await stand.metrics.get("/admin/state")).json()
    return found


@asynccontextmanager
async def busy(**settings: Any) -> AsyncIterator[Stand]:
    """One request runs, one waits."""
    async with standing(FakeWorker(hang, slots=1), **settings) as stand:
        held = [asyncio.create_task(stand.chat(headers={"X-Tenant": name})) for name in ("ann", "bob")]
        await until(lambda: stand.workers[0].running == 1)
        async with asyncio.timeout(20):
            while (await state(stand))["scheduler"]["waiting"]["requests"] != 1:
                await asyncio.sleep(0.005)
        try:
            yield stand
        finally:
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)


def test_the_state_shows_who_runs_who_waits_and_what_was_predicted() -> None:
    async def main() -> None:
        async with busy() as stand:
            seen = await state(stand)
            assert seen["inflight"] == {"now": 1, "cap": 64}
            (runs,), (waits,) = seen["running"], seen["in_line"]
            assert {runs["tenant"], waits["tenant"]} == {"ann", "bob"}
            assert (runs["worker"], waits["worker"]) == ("worker-0", None)
            assert waits["predicted_wait_ms"] >= 0
            assert 0 < waits["deadline_in_ms"] <= 30_000
            (worker,) = seen["workers"]
            assert (worker["slots"], worker["inflight"], worker["healthy"]) == (1, 1, True)
            (pool,) = seen["scheduler"]["pools"]
            assert (pool["slots"], pool["busy"], pool["waiting"]["requests"]) == (1, 1, 1)
            by_name = {one["name"] if "name" in one else one["id"]: one for one in seen["scheduler"]["tenants"]}
            assert {"ann", "bob"} <= by_name.keys()

    run(main)


def test_the_state_is_bounded_whatever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.router.operating.state.MAX_REQUESTS", 5)

    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand:
            held = [asyncio.create_task(stand.chat()) for _ in range(20)]
            async with asyncio.timeout(20):
                while (await state(stand))["scheduler"]["waiting"]["requests"] < 19:
                    await asyncio.sleep(0.01)
            assert len((await state(stand))["in_line"]) == 5
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)

    run(main)


def test_a_level_that_is_held_cuts_what_comes_and_is_let_go_again() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            assert (await turn(stand, "level", class_=None, level=3)).status_code == 200
            cut = await stand.chat(max_tokens=100)
            assert cut.headers["x-weir-level"] == "3"
            assert stand.workers[0].asked[-1].max_tokens == 45
            assert ('{class="default",pool="fake"}', 3.0) in await stand.samples("weir_degradation_level")
            assert (await turn(stand, "level", level=None)).status_code == 200
            assert (await stand.chat(max_tokens=100)).headers["x-weir-level"] == "0"
            assert stand.workers[0].asked[-1].max_tokens == 100

    run(main)


def test_a_paused_tenant_is_refused_with_a_hint_and_nobody_else_is() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            ann, bob = {"X-Tenant": "ann"}, {"X-Tenant": "bob"}
            for headers in (ann, bob):
                assert (await stand.chat(headers=headers)).status_code == 200
            assert (await turn(stand, "pause", tenant="ann")).status_code == 200
            refused = await stand.chat(headers=ann)
            assert (refused.status_code, error_of(refused)["details"]["reason"]) == (429, "paused")
            assert refused.headers["x-should-retry"] == "true"
            assert 5000 <= int(refused.headers["retry-after-ms"]) <= 6000
            assert (await stand.chat(headers=bob)).status_code == 200
            assert (await state(stand))["paused"] == ["ann"]
            await turn(stand, "pause", tenant="ann", paused=False)
            assert (await stand.chat(headers=ann)).status_code == 200

    run(main)


def test_a_worker_that_is_drained_by_hand_gets_nothing_new_until_it_goes_on() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), FakeWorker(answer)) as stand:
            assert (await turn(stand, "drain", worker="worker-0")).status_code == 200
            for _ in range(6):
                assert (await stand.chat()).status_code == 200
            assert (len(stand.workers[0].asked), len(stand.workers[1].asked)) == (0, 6)
            await asyncio.sleep(0.2)  # several probes later it is still so
            assert (await stand.chat()).status_code == 200
            assert not stand.workers[0].asked
            await turn(stand, "drain", worker="worker-0", drain=False)
            for number in range(6):  # each with a beginning of its own, which no worker has served before
                question = [{"role": "user", "content": f"{number} weirs"}]
                assert (await stand.chat(messages=question)).status_code == 200
            assert stand.workers[0].asked

    run(main)


def test_a_router_that_is_drained_by_hand_refuses_who_waits_and_who_comes() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand:
            running = asyncio.create_task(stand.chat())
            await until(lambda: stand.workers[0].running == 1)
            waiting = asyncio.create_task(stand.chat())
            async with asyncio.timeout(20):
                while (await state(stand))["scheduler"]["waiting"]["requests"] != 1:
                    await asyncio.sleep(0.005)
            assert (await turn(stand, "drain")).status_code == 200
            for refused in (await waiting, await stand.chat()):
                assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
                assert refused.headers["x-should-retry"] == "true"
            assert (await stand.client.get("/health/ready")).status_code == 503
            assert not running.done()
            assert (await turn(stand, "drain", drain=False)).status_code == 400
            running.cancel()

    run(main)


@pytest.mark.parametrize(
    ("what", "body", "status", "param"),
    [
        ("level", {"level": 9}, 400, "level"),
        ("level", {"level": -1}, 400, "level"),
        ("level", {"class": "gold", "level": 1}, 400, "class"),
        ("level", {}, 400, "level"),
        ("pause", {}, 400, "tenant"),
        ("pause", {"tenant": "nobody"}, 404, "tenant"),
        ("pause", {"tenant": "demo", "paused": "yes"}, 400, "paused"),
        ("drain", {"worker": "gpu-9"}, 404, "worker"),
        ("drain", {"worker": 7}, 400, "worker"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_by_the_name_of_its_field(what, body, status, param) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            refused = await turn(stand, what, **body)
            assert (refused.status_code, error_of(refused)["param"]) == (status, param)

    run(main)


def test_the_admin_routes_are_not_on_the_public_port_and_need_their_method() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            for method, path in ROUTES:
                assert (await stand.client.request(method, path)).status_code == 404
                other = "POST" if method == "GET" else "GET"
                assert (await stand.metrics.request(other, path)).status_code == 405
            assert (await stand.metrics.get("/admin/secrets")).status_code == 404

    run(main)


def test_a_token_once_set_is_asked_for_and_beyond_loopback_the_routes_are_off_without_one() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), admin_token=SecretStr("s3cret-s3cret-s3cret")) as stand:
            for key in (None, "Bearer wrong", "Basic s3cret-s3cret-s3cret"):
                headers = {"Authorization": key} if key else {}
                assert (await stand.metrics.get("/admin/state", headers=headers)).status_code == 401
            shown = await stand.metrics.get("/admin/state", headers={"Authorization": "Bearer s3cret-s3cret-s3cret"})
            assert shown.status_code == 200
            assert (await stand.metrics.get("/metrics")).status_code == 200
        async with standing(FakeWorker(answer), metrics_host="0.0.0.0", inner_network=True) as stand:
            assert (await stand.metrics.get("/admin/state")).status_code == 403
            assert (await stand.metrics.get("/metrics")).status_code == 200

    run(main)


@pytest.mark.parametrize("path", ["/admin/secrets", "/admin/x%0ay", "/admin/%0a", "/admin/x%0d%0ay"])
def test_an_unknown_admin_path_asks_for_the_key_and_is_logged_whatever_characters_it_has(
    path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    token = "s3cret-s3cret-s3cret"

    async def main() -> None:
        async with standing(FakeWorker(answer), admin_token=SecretStr(token), log_level="INFO") as stand:
            refused = await stand.metrics.get(path)
            assert (refused.status_code, error_of(refused)["code"]) == (401, "invalid_api_key")
            with_key = await stand.metrics.get(path, headers={"Authorization": f"Bearer {token}"})
            assert with_key.status_code == 404
            assert "no such route; the routes are /admin/state" in error_of(with_key)["message"]

    run(main)
    assert capfd.readouterr().out.count('"admin request refused"') == 2


def test_a_web_page_in_a_browser_on_this_machine_gets_nothing() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            for name, value, status in (("Origin", "http://evil.example", 403), ("Host", "evil.example:9000", 421)):
                for method, path in ROUTES:
                    refused = await stand.metrics.request(method, path, headers={name: value}, content=b"{}")
                    assert refused.status_code == status, (name, path)
            assert (await stand.chat()).status_code == 200

    run(main)


def test_every_admin_request_is_a_line_in_the_log_and_a_flood_of_refused_ones_is_few(
    capfd: pytest.CaptureFixture[str],
) -> None:
    token = "s3cret-s3cret-s3cret"

    async def main() -> None:
        async with standing(FakeWorker(answer), admin_token=SecretStr(token), log_level="INFO") as stand:
            shown = {"Authorization": f"Bearer {token}"}
            for _ in range(3):
                assert (await stand.metrics.get("/admin/state", headers=shown)).status_code == 200
            for _ in range(200):
                assert (await stand.metrics.get("/admin/state")).status_code == 401

    run(main)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if '"admin request' in line]
    told = [line["event"] for line in lines]
    assert told.count("admin request") == 3
    assert 10 <= told.count("admin request refused") <= 71  # 10 at once and one a second, of the 60 s at most
    assert token not in str(lines)
