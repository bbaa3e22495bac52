"""The clock that does not count what the machine took."""

from __future__ import annotations

import asyncio
import selectors
import socket
import time

import pytest

from tests.steady_time import MOST_S, run

STALL_S = 0.3


def stand_still() -> None:
    """No callback can run meanwhile."""
    time.sleep(STALL_S)


def test_a_second_that_is_lost_between_two_turns_ends_no_deadline() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(STALL_S / 2):
            for _ in range(3):
                stand_still()
                await asyncio.sleep(0)
        return asyncio.get_running_loop().time() - began

    assert 0 < run(main()) < 6 * MOST_S


def test_a_second_that_is_lost_while_waiting_ends_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    stalls = [STALL_S, STALL_S]
    look = selectors.DefaultSelector.select

    def stalled(selector: selectors.DefaultSelector, timeout: float | None = None) -> object:
        if timeout and stalls:
            stalls.pop()
            stand_still()
        return look(selector, timeout)

    async def main() -> float:
        loop, (ours, theirs) = asyncio.get_running_loop(), socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            loop.call_later(5 * MOST_S, theirs.send, b"x")
            began = loop.time()
            async with asyncio.timeout(STALL_S / 2):
                assert await loop.sock_recv(ours, 1) == b"x"
            return loop.time() - began

    monkeypatch.setattr(selectors.DefaultSelector, "select", stalled)
    assert 5 * MOST_S <= run(main()) < STALL_S / 2
    assert not stalls


def test_what_is_waited_for_lasts_as_long_as_it_ever_did() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time() - began

    began = time.monotonic()
    assert 0.1 <= run(main()) < 0.1 + 5 * MOST_S
    assert time.monotonic() - began >= 0.1


def test_its_clock_never_goes_back() -> None:
    async def main() -> list[float]:
        loop, seen = asyncio.get_running_loop(), list[float]()
        for pause_s in (0.0, 0.0001, 0.0, 0.003, 0.02) * 20:
            seen.append(loop.time())
            await asyncio.sleep(pause_s)
            seen.append(loop.time())
        return seen

    seen = run(main())
    assert seen == sorted(seen)


def test_a_thread_is_waited_for() -> None:
    async def main() -> int:
        return await asyncio.to_thread(slowly)

    def slowly() -> int:
        time.sleep(5 * MOST_S)
        return 7

    assert run(main()) == 7
