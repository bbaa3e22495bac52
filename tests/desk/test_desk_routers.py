"""Several routers, a desk and an OpenAI-compatible server: its slots hold over all routers, and through every fault."""

from __future__ import annotations

import asyncio
import io
from math import inf

import pytest

from services.core.leases.times import LINGER_S
from services.desk.book import LEARN_S
from services.runtime.log import Log
from tests.desk.rig import SERVICE_S, Desked, desked
from tests.router.sharedrig import floods
from tests.virtual import run


def test_two_routers_answer_from_the_slots_of_one_server() -> None:
    async def main() -> None:
        async with desked(routers=2, slots=3) as made:
            asked = [router.ask(tenant) for router in made.routers for tenant in "ab" for _ in range(10)]
            assert await asyncio.gather(*asked) == [200] * 40
            assert made.server.highest == 3, "every slot was used"

    run(main)


def test_a_router_that_is_alone_with_its_work_uses_every_slot() -> None:
    async def main() -> None:
        async with desked(routers=3, slots=4) as made:
            began = asyncio.get_running_loop().time()
            assert await asyncio.gather(*(made.routers[1].ask() for _ in range(40))) == [200] * 40
            took = asyncio.get_running_loop().time() - began
            assert took < 40 / 4 * SERVICE_S * 1.15, "as fast as one router with four slots"

    run(main)


def test_streams_are_answered_and_their_slots_change_hands() -> None:
    async def main() -> None:
        async with desked(routers=2, slots=1) as made:
            answers = await asyncio.gather(*(router.chat(stream=True) for router in made.routers for _ in range(4)))
            assert [answer.status_code for answer in answers] == [200] * 8

    run(main)


def test_tenants_behind_different_routers_get_equal_shares_however_much_one_asks() -> None:
    async def main() -> None:
        async with desked(routers=2, slots=4) as made:
            one, other = made.routers
            async with floods((one, "a", 16), (other, "b", 6)):
                await asyncio.sleep(9.0)
                assert (await made.shared.shares("a", "b", over_s=6.0))[0] == pytest.approx(0.5, abs=0.03)

    run(main)


def test_idle_slots_go_back_to_the_desk() -> None:
    async def main() -> None:
        async with desked() as made:
            assert await made.routers[0].ask() == 200
            await asyncio.sleep(LINGER_S + 1.0)
            assert [sum(router.lent) for router in made.routers] == [0, 0]
            assert made.lending.book.promised == 0

    run(main)


def test_a_router_that_stops_leaves_its_slots_to_the_others_at_once() -> None:
    async def main() -> None:
        async with desked(slots=2) as made:
            one, other = made.routers
            assert await asyncio.gather(one.ask(), one.ask()) == [200, 200]
            await one.leasing.stop()
            began = asyncio.get_running_loop().time()
            assert await asyncio.gather(other.ask(), other.ask()) == [200, 200]
            assert asyncio.get_running_loop().time() - began < SERVICE_S + 0.05

    run(main)


async def leaves_without_a_word(made: Desked, number: int) -> None:
    """Its streams break while its requests run on at the server."""
    for link in made.routers[number].leasing.links.values():
        await link.stop()
    await asyncio.sleep(0.01)


def test_slots_of_a_router_that_is_gone_are_held_until_its_requests_must_have_ended() -> None:
    async def main() -> None:
        async with desked(slots=2, hold_s=8.0) as made:
            one, other = made.routers
            made.server.service_s = 6.0
            left = [asyncio.get_running_loop().create_task(one.ask(deadline_ms=60_000)) for _ in range(2)]
            await asyncio.sleep(0.5)
            assert made.server.running == 2
            await leaves_without_a_word(made, 0)
            began = asyncio.get_running_loop().time()
            assert made.lending.book.held == 2
            assert [value for _, value in await made.samples("weir_desk_held_slots")] == [2.0]
            waiting = asyncio.get_running_loop().create_task(other.ask(deadline_ms=60_000))
            await asyncio.gather(*left)
            made.server.service_s = SERVICE_S
            assert await waiting == 200
            assert 7.8 < asyncio.get_running_loop().time() - began < 8.6

    run(main)


def test_a_router_that_comes_back_says_what_it_has_there_and_the_rest_is_lent() -> None:
    async def main() -> None:
        async with desked(slots=3, hold_s=600.0) as made:
            one, other = made.routers
            made.server.service_s = 3.0
            long = [asyncio.get_running_loop().create_task(one.ask(deadline_ms=60_000)) for _ in range(3)]
            await asyncio.sleep(0.5)
            (link,) = one.leasing.links.values()
            await leaves_without_a_word(made, 0)
            assert made.lending.book.held == 3
            assert await asyncio.gather(*long) == [200] * 3
            made.server.service_s = SERVICE_S
            link._ended()
            link.start()
            await asyncio.sleep(0.5)
            assert made.lending.book.held == 0
            began = asyncio.get_running_loop().time()
            assert await asyncio.gather(*(other.ask() for _ in range(3))) == [200] * 3
            assert asyncio.get_running_loop().time() - began < SERVICE_S + 0.1

    run(main)


def test_while_the_desk_is_gone_nothing_starts_and_what_runs_goes_on() -> None:
    async def main() -> None:
        async with desked(slots=2) as made:
            made.server.service_s = 2.0
            runs = [asyncio.get_running_loop().create_task(router.ask()) for router in made.routers]
            await asyncio.sleep(0.5)
            await made.stop()
            await asyncio.sleep(0.2)
            assert [sum(router.lent) for router in made.routers] == [0, 0]
            assert await asyncio.gather(*runs) == [200, 200]
            begun = made.server.begun
            refused = await asyncio.gather(*(router.ask(deadline_ms=2000) for router in made.routers))
            assert all(status in (429, 503, 504) for status in refused), refused
            assert made.server.begun == begun
            await made.start()

    run(main)


def test_a_desk_that_starts_counts_what_runs_before_it_lends() -> None:
    async def main() -> None:
        async with desked(slots=4) as made:
            one, other = made.routers
            made.server.service_s = 9.0
            runs = [asyncio.get_running_loop().create_task(one.ask(deadline_ms=60_000)) for _ in range(3)]
            await asyncio.sleep(0.5)
            await made.stop()
            await asyncio.sleep(0.5)
            await made.start()
            await asyncio.sleep(2.0)
            more = [asyncio.get_running_loop().create_task(other.ask(deadline_ms=60_000)) for _ in range(6)]
            await asyncio.sleep(LEARN_S - 2.5)
            assert (made.server.running, made.lending.book.promised) == (3, 3), "it has learned, and lends nothing yet"
            await asyncio.sleep(1.5)
            assert made.server.running == 4, "the free slot is lent, and those in use are not"
            made.server.service_s = SERVICE_S
            assert await asyncio.gather(*runs, *more) == [200] * 9

    run(main)


def test_the_desk_is_restarted_in_the_middle_of_a_flood_and_no_slot_is_used_twice() -> None:
    async def main() -> None:
        async with desked(routers=3, slots=4) as made:
            one, other, third = made.routers
            async with floods((one, "a", 12), (other, "b", 6), (third, "c", 6)):
                for down_s in (0.0, 0.3, 2.0):
                    await asyncio.sleep(4.0)
                    await made.stop()
                    await asyncio.sleep(down_s)
                    await made.start()
                    await asyncio.sleep(LEARN_S)
                begun = made.server.begun
                await asyncio.sleep(2.0)
                assert made.server.begun - begun > 0.85 * 2.0 * 4 / SERVICE_S, "every slot is in use again"

    run(main)


def test_what_a_desk_lends_is_seen_in_metrics() -> None:
    async def main() -> None:
        async with desked(slots=2) as made:
            made.server.service_s = 2.0
            runs = asyncio.get_running_loop().create_task(made.routers[0].ask())
            await asyncio.sleep(0.5)
            found = {
                name: [value for _, value in await made.samples(f"weir_desk_{name}")]
                for name in ("slots", "promised_slots", "held_slots", "lease_routers")
            }
            assert found == {"slots": [2.0], "promised_slots": [1.0], "held_slots": [0.0], "lease_routers": [1.0]}
            assert [value for _, value in await made.routers[0].samples("weir_lease_up")] == [1.0]
            assert await runs == 200
            state = (await made.routers[0].metrics.get("/admin/state")).json()["sharing"]
            assert [worker["slots"] for worker in state["workers"]] == [2]

    run(main)


def test_no_log_grows_with_asks_and_grants() -> None:
    """At the default level a request has its line at its router, and nothing else has one for each."""

    async def main() -> None:
        written = io.BytesIO()
        async with desked(slots=2, learns=True, log=Log("all", "INFO", written, threaded=False)) as made:
            one, other = made.routers

            def lines() -> list[str]:
                return [line for line in written.getvalue().decode().splitlines() if "/v1/chat/completions" not in line]

            async with floods((one, "a", 4), (other, "b", 4)):
                await asyncio.sleep(1.0)
                before, moves, begun = lines(), made.lending.book.moves, made.server.begun
                await asyncio.sleep(5.0)
                assert made.server.begun - begun > 50
                assert made.lending.book.moves - moves > 50
                assert lines() == before
            assert "/v1/chat/completions" in written.getvalue().decode()
            await made.stop()
            await asyncio.sleep(0.1)
            assert "the lease has ended" in str(lines()), "what happens once is written"
            await made.start()

    run(main)


def test_an_ask_without_a_count_or_without_a_stream_is_refused() -> None:
    async def main() -> None:
        async with desked(routers=0) as made, made.asking() as client:
            ask = {"router": "x", "stamp": [1, 1], "ack": [0, 0]}
            reply = await client.post("/server-a/lease", json=ask)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "count")
            reply = await client.post("/server-a/lease", json={**ask, "count": [1, 0]})
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "no_stream")
            assert (await client.post("/server-b/lease", json=ask)).status_code == 404
            for told, param in (
                ({"ended": [[1.0, 2, 3]] * 65}, "ended"),
                ({"ended": [[-1.0, 2, 3]]}, "ended[0][0]"),
                ({"overloaded": 65}, "overloaded"),
            ):
                reply = await client.post("/server-a/lease", json={**ask, "count": [1, 0], **told})
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
            assert made.lending.book.wakes_at() == inf

    run(main)
