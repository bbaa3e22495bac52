"""A bounded buffer between the batch and one reader."""

from __future__ import annotations

import asyncio

import pytest

from services.core.outcome import Outcome
from services.worker.stream import AnswerStream, Dropped
from tests.virtual import run

OVER = Dropped(Outcome.CLIENT_GONE, "over")


def test_the_reader_takes_all_that_has_gathered_and_then_the_ending():
    async def main() -> None:
        stream = AnswerStream(capacity_tokens=4)
        stream.put("a")
        stream.put("b")
        stream.end(OVER)
        assert await stream.take() == ["a", "b"]
        assert await stream.take() == []
        assert stream.ending is OVER

    run(main())


def test_a_reader_that_waits_is_woken_by_the_first_token():
    async def main() -> None:
        stream = AnswerStream(capacity_tokens=4)
        asyncio.get_running_loop().call_later(5, stream.put, "a")
        assert await stream.take() == ["a"]
        assert asyncio.get_running_loop().time() == pytest.approx(5)

    run(main())


def test_a_reader_of_the_whole_is_woken_only_by_the_ending():
    async def main() -> None:
        stream = AnswerStream(capacity_tokens=4, whole=True)
        loop = asyncio.get_running_loop()
        loop.call_later(1, stream.put, "a")
        loop.call_later(2, stream.end, OVER)
        assert await stream.take() == ["a"]
        assert loop.time() == pytest.approx(2)

    run(main())


def test_a_full_buffer_says_so_and_keeps_what_it_has():
    stream = AnswerStream(capacity_tokens=2)
    assert [stream.put(text) for text in "abc"] == [True, True, False]
    assert repr(stream) == "<AnswerStream open, 2/2 unread>"


def test_a_reader_that_was_cancelled_does_not_break_the_writer():
    async def main() -> None:
        stream = AnswerStream(capacity_tokens=2)
        reading = asyncio.create_task(stream.take())
        await asyncio.sleep(1)
        reading.cancel()
        await asyncio.wait([reading])
        assert stream.put("a")
        stream.end(OVER)

    run(main())


def test_a_buffer_without_room_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        AnswerStream(capacity_tokens=0)
