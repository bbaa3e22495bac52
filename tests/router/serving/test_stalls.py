"""The router itself stood still: its clients' deadlines went on meanwhile, and its workers are not to blame."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.router.rig import FakeWorker, answer, standing
from tests.router.serving.test_streams import words
from tests.virtual import run, stand_still


def read_late(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every request was in the kernel so long before the router read it."""
    if not hasattr(socket, "TCP_INFO"):
        pytest.skip("only Linux tells")
    monkeypatch.setattr("services.runtime.arrival.unread_ms", lambda _: 1000 * seconds)


def test_the_deadline_of_a_request_that_was_read_late_counts_from_its_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    read_late(monkeypatch, 3.0)

    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            answered = await stand.chat(headers={"x-weir-deadline-ms": "8000"})
            assert answered.status_code == 200
            (asked,) = stand.workers[0].asked
            assert asked.deadline_ms == pytest.approx(5000, abs=5)

    run(main)


def test_a_request_whose_deadline_passed_before_it_was_read_is_refused_and_reaches_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_late(monkeypatch, 3.0)

    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            refused = await stand.chat(headers={"x-weir-deadline-ms": "2000"})
            assert refused.status_code in (429, 503), refused.text
            assert stand.workers[0].asked == []
            assert await stand.held() == 0

    run(main)


def test_what_a_worker_said_while_the_router_stood_still_is_read_before_the_worker_counts_as_silent() -> None:
    async def main() -> None:
        async with standing(FakeWorker(words(0.1, count=8)), stream_silence_s=0.4) as stand:
            asyncio.get_running_loop().call_later(0.35, stand_still, 1.5)
            answered = await stand.chat(stream=True, headers={"x-weir-deadline-ms": "8000"})
            assert answered.text.endswith("data: [DONE]\n\n")
            assert await stand.counted() == {"served": 1}

    run(main)


def test_a_worker_that_stays_silent_after_the_router_stood_still_has_failed() -> None:
    async def main() -> None:
        async with standing(FakeWorker(words(60.0)), stream_silence_s=0.4) as stand:
            asyncio.get_running_loop().call_later(0.35, stand_still, 1.5)
            began = asyncio.get_running_loop().time()
            answered = await stand.chat(stream=True, headers={"x-weir-deadline-ms": "8000"})
            assert "upstream_failed" in answered.text
            assert asyncio.get_running_loop().time() - began < 2.2

    run(main)


def test_a_deadline_that_passed_while_the_router_stood_still_ends_the_request_at_once() -> None:
    async def main() -> None:
        async with standing(FakeWorker(words(0.1)), stream_silence_s=0.4) as stand:
            asyncio.get_running_loop().call_later(0.35, stand_still, 1.5)
            answered = await stand.chat(stream=True, headers={"x-weir-deadline-ms": "1000"})
            assert "deadline_exceeded" in answered.text

    run(main)
