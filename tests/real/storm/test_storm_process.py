"""The bench's process on real sockets: it ends by itself, stops at once, and no wish passes its bounds."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import httpx2

from services.runtime.http import Exchange
from tests.real.storm.stand import WRITE, FakeRouter, Stand, eventually, run, standing
from tests.runtime.rig import serving


def test_a_run_ends_by_itself_and_its_books_are_those_of_the_router(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter()) as stand:
            told = await stand.whole_run("steady", seconds=10, intensity=2.0)
            assert told["ended"] == "done"
            assert told["sent"] == len(stand.router.sent) == told["on_time"] + told["late"] > 100
            assert told["sent"] == sum(second["sent"] for second in told["series"])
            assert {name for name, _ in stand.router.sent} == {"anna", "ben", "chloe"}
            assert {deadline for _, deadline in stand.router.sent} == {"2000"}
            assert (told["capacity_per_s"], told["policy"], told["wasted_s"]) == (26.6, None, 0.0)
            assert {kept["run"] for kept in (await stand.state())["runs"]} == set(stand.begun)

    run(main)


def test_a_stop_sends_everybody_away_at_once(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(hangs=True)) as stand:
            for _ in range(3):  # where the machine stood still meanwhile, they are sent away once more
                stand.router.sent.clear()
                took_s = await _sent_away(stand)
                if took_s < 1.0:
                    break
            assert took_s < 1.0, "what is promised: within a second of the answer"
            assert await stand.stop() is None

    run(main)


async def _sent_away(stand: Stand) -> float:
    """The seconds from the answer until nobody is there."""
    loop = asyncio.get_running_loop()
    id = await stand.start("burst", intensity=20, seconds=10)
    await eventually(lambda: _under_way(stand, 30))
    assert await stand.stop() == id
    stopped_at = loop.time()
    while stand.router.under_way:
        await asyncio.sleep(0.005)
    took_s = loop.time() - stopped_at
    assert await stand.running() is None
    sent = len(stand.router.sent)
    told = await stand.run(id)
    assert (told["ended"], told["sent"], told["gone"]) == ("stopped", sent, sent)
    await asyncio.sleep(0.3)
    assert len(stand.router.sent) == sent
    return took_s


async def _under_way(stand: Stand, least: int) -> bool:
    return stand.router.under_way >= least


def test_one_run_at_a_time_and_the_next_one_can_begin_as_soon_as_it_is_stopped(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter()) as stand:
            first = await stand.start("steady")
            reply = await stand.client.post("/storm", json={"scenario": "burst"}, headers=WRITE)
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "storm_running")
            assert await stand.stop() == first
            assert await stand.start("burst") != first

    run(main)


def test_a_bound_of_connections_holds_before_a_router_that_hangs(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(hangs=True), STORM_CONNECTIONS=12) as stand:
            id = await stand.start("burst", intensity=20, seconds=10)
            await eventually(lambda: _held_back(stand, 50))
            assert stand.router.most_under_way <= 12
            await stand.stop()
            told = await stand.run(id)
            assert told["sent"] == told["gone"] == len(stand.router.sent)

    run(main)


async def _held_back(stand: Stand, least: int) -> bool:
    running = await stand.running()
    return running is not None and running["held_back"] >= least


def test_a_bound_of_the_rate_holds_whatever_the_capacity_is_said_to_be(tmp_path: Path):
    async def main() -> None:
        settings = {"STORM_CAPACITY_RPS": 100_000, "STORM_MAX_RPS": 50}
        async with standing(tmp_path, FakeRouter(), workers=0, **settings) as stand:
            id = await stand.start("steady", intensity=2.0, seconds=10)
            await eventually(lambda: _sent(stand, 150))
            await stand.stop()
            told = await stand.run(id)
            assert told["capped"]
            assert 150 <= told["sent"] == len(stand.router.sent) <= told["lasted_s"] * 50 + 5

    run(main)


async def _sent(stand: Stand, least: int) -> bool:
    running = await stand.running()
    return running is not None and running["sent"] >= least


def test_no_body_passes_a_bound(tmp_path: Path):
    """Three hundred bodies: each is refused with a reason, or begins a run within the sliders."""
    chance = random.Random(8)

    async def main() -> None:
        async with standing(tmp_path, FakeRouter(status=429)) as stand:
            state = await stand.state()
            limits = {one["name"]: {s["name"]: s for s in one["sliders"]} for one in state["scenarios"]}
            began = 0
            for _ in range(300):
                reply = await stand.client.post("/storm", content=_body(chance, list(limits)), headers=WRITE)
                assert reply.status_code in (202, 400, 404, 409), reply.text
                if reply.status_code != 202:
                    assert reply.json()["error"]["message"]
                    continue
                began += 1
                running = await stand.running()
                assert running is not None
                sliders = limits[running["scenario"]]
                assert running["sliders"].keys() == sliders.keys()
                for name, value in running["sliders"].items():
                    assert sliders[name]["min"] <= value <= sliders[name]["max"]
                assert 10 <= running["seconds"] <= 60
                await stand.stop()
            assert began > 10

    run(main)


def _body(chance: random.Random, scenarios: list[str]) -> bytes:
    values = (
        1, 5, 10, 30, 60, 61, -1, 0, 1e9, -1e308, 1e308, 20, 20.5, "5", None, True, [], {}, 1000, 0.5, 8000,
        float("nan"),
    )  # fmt: skip
    names = ("intensity", "seconds", "deadline_ms", "retries", "leaving", "rate_per_s", "connections", "")
    sliders = {chance.choice(names[:5]): chance.choice(values[:5]) for _ in range(chance.randrange(3))}
    if chance.random() < 0.7:
        sliders[chance.choice(names)] = chance.choice(values)
    wish: object = {"scenario": chance.choice([*scenarios, "other", 7]), "sliders": sliders}
    if chance.random() < 0.2:
        wish = chance.choice([[], {}, 7, "burst", None, {"scenario": "burst", "seconds": 9e9}, {"sliders": {}}])
    body = json.dumps(wish).encode()
    return body[: chance.randrange(len(body))] if chance.random() < 0.1 else body


def test_nothing_that_a_web_page_can_send_begins_or_stops_a_run(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter()) as stand:
            for headers in ({}, {**WRITE, "origin": "http://127.0.0.1:8000"}, {"x-weir-console": "yes"}):
                reply = await stand.client.post("/storm", json={"scenario": "burst"}, headers=headers)
                assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forbidden")
            id = await stand.start("steady")
            assert (await stand.client.delete("/storm")).status_code == 403
            running = await stand.running()
            assert running is not None
            assert running["run"] == id

    run(main)


def test_workers_are_slowed_while_a_run_says_so_and_healed_when_it_is_stopped(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter()) as stand:
            await stand.start("slow_worker", seconds=10, slow_factor=7)
            await eventually(stand.slowed)
            assert sorted(await stand.slow_factors()) == [1, 7]
            await stand.stop()
            assert await stand.healed()

    run(main)


def test_workers_heal_by_themselves_when_the_bench_is_killed(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(hangs=True)) as stand:
            await stand.start("retry_storm", seconds=10)
            await eventually(stand.slowed)
            assert min(await stand.slow_factors()) > 1
            stand.kill()
            await eventually(lambda: _nobody_under_way(stand))
            await eventually(stand.healed)

    run(main)


async def _nobody_under_way(stand: Stand) -> bool:
    return stand.router.under_way == 0


def test_a_router_that_is_gone_is_counted_and_ends_nothing(tmp_path: Path):
    async def main() -> None:
        settings = {"STORM_ROUTER_URL": "http://127.0.0.1:1", "STORM_METRICS_URL": "http://127.0.0.1:1"}
        async with standing(tmp_path, FakeRouter(), **settings) as stand:
            id = await stand.start("retry_storm", seconds=10, intensity=1.5)
            await eventually(lambda: _sent(stand, 50))
            await stand.stop()
            told = await stand.run(id)
            assert (told["ended"], told["wasted_s"]) == ("stopped", None)
            assert told["failed_by_code"] == {"no_connection": told["failed"]}
            assert told["sent"] - 10 < told["failed"] == told["sent"] - told["gone"]  # a few were about to connect
            page = await stand.client.get("/storm/report", params={"run": id})
            assert "unknown" in page.text

    run(main)


def test_what_is_missing_is_said_before_anybody_asks_for_it(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(), workers=0) as stand:
            state = await stand.state()
            missing = {one["name"]: one["why_not"] for one in state["scenarios"] if not one["available"]}
            assert set(missing) == {"retry_storm", "slow_worker", "redis_gone"}
            assert "REDIS_URL" in missing["redis_gone"]
            reply = await stand.client.post("/storm", json={"scenario": "slow_worker"}, headers=WRITE)
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "storm_unavailable")
            id = await stand.start("steady")  # nobody announces a speed
            await stand.until_over()
            told = await stand.run(id)
            assert told["ended"] == "failed"
            assert "STORM_CAPACITY_RPS" in told["why"]
            assert not stand.router.sent

    run(main)


def test_with_a_tenants_file_there_is_no_storm(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(), TENANTS_FILE="/etc/weir/tenants.yaml") as stand:
            assert not any(one["available"] for one in (await stand.state())["scenarios"])
            reply = await stand.client.post("/storm", json={"scenario": "steady"}, headers=WRITE)
            assert reply.status_code == 409
            assert "tenants file" in reply.json()["error"]["message"]

    run(main)


QUERIES = ("", "?run=", "?run=nobody", "?run=%2e%2e%2fetc", "?run=a&run=b", "?other=1")


def test_a_run_that_is_not_known_is_not_found(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(), workers=0) as stand:
            for target in (path + query for path in ("/storm/report", "/storm/run") for query in QUERIES):
                reply: httpx2.Response = await stand.client.get(target)
                assert reply.status_code in (400, 404)
                assert reply.json()["error"]["message"]

    run(main)


def test_clients_leave_before_what_was_broken_is_mended_and_a_worker_that_hangs_keeps_nobody(tmp_path: Path):
    router, seen, broken = FakeRouter(hangs=True), [], asyncio.Event()

    async def faults(exchange: Exchange) -> None:
        if exchange.method == "PUT":
            broken.set()
        if exchange.method == "DELETE":
            while router.under_way:
                await asyncio.sleep(0.005)
            seen.append(exchange.gone)  # whether it has given up this worker before its clients had left
            await asyncio.Event().wait()
        await exchange.reply(200, b"{}")

    async def main() -> None:
        routes = {(method, "/faults"): faults for method in ("GET", "PUT", "DELETE")}
        async with serving(routes, drain_timeout_s=0.2) as worker:
            url = f"http://127.0.0.1:{worker.bound_port}"
            async with standing(tmp_path, router, STORM_FAULT_URLS=url) as stand:
                for _ in range(3):  # a bench or a worker that the machine holds up may give up in good faith
                    broken.clear()
                    id = await stand.start("retry_storm", seconds=10)
                    await broken.wait()
                    assert router.under_way
                    assert await stand.stop() == id
                    assert await stand.running() is None
                    if seen[-1:] == [False]:
                        break
                assert seen[-1:] == [False]

    run(main)
