"""Inference servers of others behind Weir, as processes: the same sentences for each row of the table.

Skipped where a server is not installed: `python -m tests.real.engines` installs them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvloop

from tests.real.desk.stand import Front, desk_stand, survives
from tests.real.engines.stand import EngineStand, client_of, events, long_answer, make_model, router_before, until
from tests.real.engines.table import CHAT, ENGINES, MODEL, Engine

FREE_WITHIN_S = 5.0
STALL_S = 0.5
"""Shorter than what makes the router give a server up."""
LONG = 1900
"""Tokens of an answer that takes an engine many seconds here."""


@pytest.fixture(scope="module", params=ENGINES, ids=lambda engine: engine.name)
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineStand]:
    engine: Engine = request.param
    if why := engine.missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp(engine.name)
    make_model(engine, folder)
    made = EngineStand(engine, folder)
    try:
        uvloop.run(made.start())
        uvloop.run(warm(made))
        yield made
    finally:
        made.kill()


async def warm(stand: EngineStand) -> None:
    """A server's first answer may take a minute; Weir's estimates are not what is tested here."""
    async with client_of(f"{stand.url}/v1") as direct:
        await direct.post("/chat/completions", json={**CHAT, "max_tokens": 2})


def words(found: list[Any]) -> str:
    choices = [event["choices"][0] for event in found if event != "[DONE]" and event["choices"]]
    return "".join(choice.get("text") or (choice.get("delta") or {}).get("content") or "" for choice in choices)


def usage_in(found: list[Any]) -> Any:
    return next((event["usage"] for event in reversed(found) if event != "[DONE]" and event.get("usage")), None)


def test_its_model_is_found_and_its_answers_are_the_engines_own(stand: EngineStand, tmp_path: Path) -> None:
    async def main() -> None:
        async with router_before(stand, tmp_path) as router, client_of(f"{stand.url}/v1") as direct:
            listed = (await router.client.get("/models")).json()
            assert [model["id"] for model in listed["data"]] == [MODEL]
            for path, body in (
                ("/chat/completions", {**CHAT, "max_tokens": 6, "temperature": 0}),
                ("/completions", long_answer(6)),
                ("/completions", {"model": MODEL, "prompt": "hello there", "temperature": 0}),  # its own length
            ):
                own = (await direct.post(path, json=body)).json()
                answer = await router.client.post(path, json=body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"] == own["choices"]
                assert answer.json()["usage"] == own["usage"]
                assert own["usage"]["completion_tokens"] > 0
                asked = {**body, "stream_options": {"include_usage": True}}
                streamed = await events(router.client, path, asked)
                assert streamed[-1] == "[DONE]"
                assert words(streamed) == words(await events(direct, path, asked))
                if stand.engine.usage_in_streams:
                    counts = ("prompt_tokens", "completion_tokens")
                    assert [usage_in(streamed)[name] for name in counts] == [own["usage"][name] for name in counts]
            await until(lambda: router.worker()["inflight"] == 0)

    uvloop.run(main())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_the_engine(stand: EngineStand, tmp_path: Path, stream: bool) -> None:
    if not stream and not stand.engine.stops_whole:
        pytest.skip(f"{stand.engine.name} generates a plain answer to its end")

    async def main() -> None:
        async with router_before(stand, tmp_path) as router:
            await leave_after(router.client, stream)
            await until(lambda: router.worker()["inflight"] == 0)
            assert await stand.idle_after_s(FREE_WITHIN_S) is not None
            answer = await router.client.post("/completions", json=long_answer(2))
            assert answer.status_code == 200, answer.text

    uvloop.run(main())


async def leave_after(client: httpx2.AsyncClient, stream: bool) -> None:
    body = {**long_answer(LONG), "stream": stream}
    """After three events of a stream, or a second without an answer; fails if the answer came first."""
    with suppress(httpx2.TimeoutException):
        async with client.stream("POST", "/completions", json=body, timeout=None if stream else 1.0) as answer:
            assert answer.status_code == 200, await answer.aread()
            heard = 0
            async for line in answer.aiter_lines():
                heard += line.startswith("data:")
                if heard == 3:
                    return
        raise AssertionError("the answer came before the client left")


def test_under_overload_nothing_is_late_and_every_refusal_has_a_hint(stand: EngineStand, tmp_path: Path) -> None:
    deadline_s, grace_s = 10.0, 1.0  # the grace is the client's and the machine's, who share two cores with the engine

    async def one(client: httpx2.AsyncClient) -> tuple[float, httpx2.Response]:
        began = time.monotonic()
        headers = {"x-weir-deadline-ms": f"{deadline_s * 1000:.0f}"}
        answer = await client.post("/completions", json=long_answer(40), headers=headers)
        return time.monotonic() - began, answer

    async def main() -> None:
        async with router_before(stand, tmp_path) as router:
            for _ in range(4):
                await one(router.client)  # so that the router knows the engine's pace
            found = await asyncio.gather(*(one(router.client) for _ in range(60)))
            answered = [took for took, answer in found if answer.status_code == 200]
            assert answered
            assert max(answered) <= deadline_s + grace_s
            for took, answer in found:
                if answer.status_code != 200:
                    assert answer.status_code in (429, 503, 504), answer.text
                    assert took <= deadline_s + grace_s
                    if answer.headers["x-should-retry"] == "true":  # else it never fits, or its time is over
                        assert int(answer.headers["retry-after-ms"]) > 0, answer.text
            await until(lambda: router.worker()["inflight"] == 0)

    uvloop.run(main())


def test_one_slow_answer_teaches_little(stand: EngineStand, tmp_path: Path) -> None:
    """A stall of the engine in the middle of an answer, and then ordinary ones: none is refused, cut or degraded."""

    async def main() -> None:
        async with router_before(stand, tmp_path, may_be_cut=frozenset("t")) as router:
            for _ in range(20):
                await router.client.post("/completions", json=long_answer(20))
            slow = asyncio.create_task(router.client.post("/completions", json=long_answer(LONG)))
            await asyncio.sleep(0.3)
            async with stand.frozen():
                await asyncio.sleep(STALL_S)
            assert (await slow).status_code == 200, (await slow).text
            await router.healthy()
            for number in range(20):
                answer = await router.client.post("/completions", json=long_answer(20))
                assert answer.status_code == 200, (number, answer.text)
                assert (answer.headers["x-weir-level"], "x-weir-degraded" in answer.headers) == ("0", False), number

    uvloop.run(main())


def test_bad_input_is_the_clients_own_and_harms_nobody(stand: EngineStand, tmp_path: Path) -> None:
    bad = stand.engine.bad

    async def main() -> None:
        async with router_before(stand, tmp_path) as router, client_of(f"{stand.url}/v1") as direct:
            body = {**CHAT, "max_tokens": 4, **bad.fields}
            assert (await direct.post("/chat/completions", json=body)).status_code == bad.engine
            for _ in range(7):  # five failures in a row would eject a worker
                refused = await router.client.post("/chat/completions", json=body)
                assert refused.status_code == bad.client, refused.text
                assert refused.json()["error"]["message"]
                assert "site-packages" not in refused.text
            worker = router.worker()
            assert (worker["healthy"], worker["failures_in_a_row"], worker["ejections"]) == (True, 0, 0)
            good = await router.client.post("/chat/completions", json={**CHAT, "max_tokens": 4})
            assert good.status_code == 200, good.text

    uvloop.run(main())


def test_what_the_engine_reports_is_seen(stand: EngineStand, tmp_path: Path) -> None:
    if not stand.engine.reports:
        pytest.skip(f"{stand.engine.name} has no metrics page that Weir reads")

    async def main() -> None:
        async with router_before(stand, tmp_path) as router:
            await until(lambda: router.worker()["engine"] is not None)
            worker = router.worker()
            assert (worker["engine"]["name"], worker["engine"]["kv_tokens"]) == (stand.engine.name, 20 * 128)
            assert worker["kv_tokens"] == (20 - stand.engine.slots - 1) * 128
            asking = [asyncio.create_task(router.client.post("/completions", json=long_answer(900))) for _ in range(6)]
            await until(lambda: router.worker()["engine"]["running"] > 0)
            held = []
            while not all(task.done() for task in asking):
                state = router.worker()
                held.append(state["inflight"])
                assert state["kv_held_tokens"] <= worker["kv_tokens"]
                await asyncio.sleep(0.1)
            assert 0 < max(held) <= 2, "of three the prompts and answers would not fit"
            assert router.worker()["engine"]["preemptions"] == 0

    uvloop.run(main())


def test_an_engine_of_unknown_batch_size_is_used_with_a_learned_limit(stand: EngineStand, tmp_path: Path) -> None:
    async def main() -> None:
        async with router_before(stand, tmp_path, slots="auto") as router:
            for _ in range(4):
                answers = await asyncio.gather(
                    *(router.client.post("/completions", json=long_answer(4)) for _ in range(8))
                )
                assert {answer.status_code for answer in answers} <= {200, 429}
            assert router.worker()["limit"]["now"] >= 1

    uvloop.run(main())


def test_an_engine_that_is_killed_is_left_and_used_again_when_it_is_back(stand: EngineStand, tmp_path: Path) -> None:
    async def main() -> None:
        async with router_before(stand, tmp_path) as router:
            asking = asyncio.create_task(router.client.post("/completions", json=long_answer(LONG)))
            await until(lambda: router.worker()["inflight"] == 1)
            stand.kill()
            lost = await asking
            assert lost.status_code in (502, 503), lost.text
            await until(lambda: not router.worker()["healthy"])
            refused = await router.client.post("/completions", json=long_answer(2))
            assert refused.status_code == 503, refused.text
            assert int(refused.headers["retry-after-ms"]) > 0
            await stand.start()
            await router.healthy()
            await warm(stand)
            answer = await router.client.post("/completions", json=long_answer(2))
            assert answer.status_code == 200, answer.text

    uvloop.run(main())


def test_two_routers_share_its_slots_through_a_desk_that_is_killed(stand: EngineStand, tmp_path: Path) -> None:
    async def main() -> None:
        async with httpx2.AsyncClient(timeout=60) as client:
            front = Front(stand.engine.slots, MODEL, stand.url, client)
            async with desk_stand(tmp_path, front) as made:
                await survives(made)
            assert set(front.statuses) == {200}

    uvloop.run(main())
