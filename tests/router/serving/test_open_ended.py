"""A request that names no limit of its answer gets none, but for an operator's, which is disclosed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.router.console.test_console import life
from tests.router.rig import FakeRetrieval, FakeWorker, Stand, answer, passage, standing
from tests.router.serving.test_disclosure import DEEPEST, ending, hold, said_after
from tests.router.serving.test_transparent import CHAT, TEXT, Recorder, recording
from tests.virtual import run

BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    TEXT: {"prompt": "hi"},
    "/ask": {"query": "What holds?"},
}
DEFAULT = "x-weir-default-max-tokens"


async def limits_of(stand: Stand, path: str, **fields: Any) -> list[Any]:
    """What the worker was asked for, plain and streamed, and what the headers say."""
    found: list[Any] = []
    for stream in (False, True):
        response = await stand.post(path, {**BODIES[path], "stream": stream, **fields})
        assert response.status_code == 200, response.text
        found += [stand.workers[0].asked[-1].max_tokens, response.headers.get(DEFAULT)]
    return found


@pytest.mark.parametrize("path", BODIES)
def test_no_limit_is_put_in_and_an_operators_is_and_is_disclosed(path: str) -> None:
    async def main() -> None:
        for default, expected in ((0, [None, None]), (40, [40, "40"])):
            async with standing(
                FakeWorker(answer), retrieval=FakeRetrieval([passage(1)]), default_max_tokens=default
            ) as stand:
                assert await limits_of(stand, path) == [*expected, *expected]
                assert await limits_of(stand, path, max_tokens=7) == [7, None, 7, None]

    run(main)


@pytest.mark.parametrize(("finish_reason", "after"), [("length", ["max_tokens"]), ("stop", [])])
def test_a_limit_that_a_level_sets_is_disclosed_though_the_client_named_none(
    finish_reason: Any, after: list[str]
) -> None:
    async def main() -> None:
        async with standing(FakeWorker(ending(finish_reason))) as stand:
            await hold(stand, DEEPEST)
            streamed = await stand.chat(stream=True)
            assert stand.workers[0].asked[0].max_tokens == 76  # 30 % of the 256 that are likely while nothing is known
            assert streamed.headers["x-weir-degraded"] == "max_tokens"
            assert said_after(streamed) == after
            whole = await stand.chat()
            assert whole.headers.get("x-weir-degraded", "") == ",".join(after)

    run(main)


def test_an_answer_without_a_limit_that_ends_for_its_length_was_not_cut_by_the_router() -> None:
    async def main() -> None:
        async with standing(FakeWorker(ending("length"))) as stand:
            streamed = await stand.chat(stream=True)
            assert stand.workers[0].asked[0].max_tokens is None
            assert "x-weir-degraded" not in streamed.headers
            assert said_after(streamed) == []

    run(main)


def test_an_operators_limit_is_that_of_each_answer(tmp_path: Path) -> None:
    server = Recorder()

    async def main() -> None:
        async with recording(tmp_path, server, default_max_tokens=40) as stand:
            response = await stand.post(CHAT, {**BODIES[CHAT], "n": 2})
            assert (server.sent["max_tokens"], response.headers[DEFAULT]) == (40, "40")

    run(main)


def test_what_an_answer_must_at_least_be_is_planned_for(tmp_path: Path) -> None:
    server = Recorder()

    async def main() -> None:
        async with recording(tmp_path, server) as stand:
            admitted: list[tuple[int, bool]] = []
            admit = stand.dispatcher.admit
            stand.dispatcher.admit = lambda now, request: (  # type: ignore[method-assign]
                admitted.append((request.max_tokens, request.open_ended)) or admit(now, request)  # type: ignore[func-returns-value]
            )
            await stand.post(CHAT, {**BODIES[CHAT], "min_tokens": 9000})
            await stand.post(CHAT, {**BODIES[CHAT], "min_tokens": 9, "n": 2})
            assert admitted == [(9000, True), (512, True)]
            assert (server.sent["min_tokens"], "max_tokens" in server.sent) == (9, False)

    run(main)


def test_the_console_shows_a_request_without_a_limit_as_such() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            response = await stand.chat()
            told = await life(stand, response.headers["x-request-id"])
            assert (told.numbers.max_tokens, told.numbers.granted_tokens) == (None, None)
            assert any("no limit of its answer" in (moment.detail or "") for moment in told.timeline)

    run(main)
