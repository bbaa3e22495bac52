"""The cache is silenced for as long as a run says, and never longer than a second after that, whoever is killed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from loadtests.storm.silence import NotSilenced, SilentCache
from services.cli.valkey import EmbeddedValkey
from tests.real.storm.stand import FakeRouter, Stand, eventually, run, standing


async def answers(redis: EmbeddedValkey, within_s: float = 0.3) -> bool:
    """Whether somebody else's command is answered."""
    password = redis.url.partition("://:")[2].partition("@")[0]
    reader, writer = await asyncio.open_connection("127.0.0.1", redis.port)
    writer.write(f"AUTH {password}\r\nGET nothing\r\n".encode())
    try:
        async with asyncio.timeout(within_s):
            await reader.readline()
            return (await reader.readline()).startswith(b"$")
    except TimeoutError:
        return False
    finally:
        writer.transport.abort()


def test_nobody_is_answered_while_it_lasts_and_everybody_is_afterwards(redis_url: str, redis: EmbeddedValkey):
    async def main() -> None:
        holding = asyncio.ensure_future(SilentCache(redis_url).hold(2.5))
        await eventually(lambda: _silent(redis))
        heard = 0
        while not holding.done():
            before = time.monotonic()
            heard += await answers(redis, 0.05) and not holding.done()
            await asyncio.sleep(max(0.0, 0.02 - (time.monotonic() - before)))
        assert heard <= 3  # in the instants between two pauses, on a busy machine, and at the very end
        await holding
        assert await answers(redis, 10)

    run(main)


async def _silent(redis: EmbeddedValkey) -> bool:
    return not await answers(redis)


def test_one_that_is_given_up_is_over_within_its_slice(redis_url: str, redis: EmbeddedValkey):
    async def main() -> None:
        holding = asyncio.ensure_future(SilentCache(redis_url).hold(60.0))
        await eventually(lambda: _silent(redis))
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        assert await answers(redis, 20)

    run(main)


def test_a_bench_that_is_killed_leaves_a_cache_that_answers(tmp_path: Path, redis_url: str, redis: EmbeddedValkey):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(), REDIS_URL=redis_url) as stand:
            await _until_available(stand)
            await stand.start("redis_gone", seconds=10)
            await eventually(lambda: _silent(redis))
            stand.kill()
            assert await answers(redis, 20)

    run(main)


async def _until_available(stand: Stand) -> None:
    async def available() -> bool:
        return all(one["available"] for one in (await stand.state())["scenarios"])

    await eventually(available)


@pytest.mark.parametrize(
    "url", ["rediss://host:1", "http://host", "redis://", "redis://:wrong@{at}", "redis://127.0.0.1:1"]
)
def test_a_cache_that_cannot_be_silenced_is_told_so(url: str, redis_url: str, redis: EmbeddedValkey):
    async def main() -> None:
        with pytest.raises(NotSilenced) as caught:
            await SilentCache(url.format(at=f"127.0.0.1:{redis.port}")).reached()
        assert "wrong" not in str(caught.value).split("says")[0]

    run(main)
