"""What a Valkey does for the client library: the commands that the cache uses, their errors, its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from services.retrieval.cache import UNLESS_FULLER
from tests.contract.stages import CacheStage

VALUE = b"\x00\xff\r\n$5\r\n" * 100


def play(stage: CacheStage, scenario: Callable[[Redis], Awaitable[None]]) -> None:
    async def main(url: str) -> None:
        async with Redis.from_url(url, protocol=3) as client, asyncio.timeout(60):
            await scenario(client)

    stage.run(main)


def test_what_is_set_is_got_byte_by_byte_until_something_else_is(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        assert await client.ping()
        assert await client.get("a") is None
        assert await client.set("a", VALUE)
        assert await client.set("big", b"x" * 300_000)
        assert await client.get("a") == VALUE
        assert len(await client.get("big")) == 300_000
        assert await client.set("a", b"")
        assert await client.get("a") == b""

    play(cache, scenario)


def test_a_key_ends_when_its_time_is_over_and_says_how_much_is_left(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        await client.set("endless", "x")
        await client.set("short", "x", px=30)
        await client.set("long", "x", px=100_000)
        assert await client.pttl("none") == -2
        assert await client.pttl("endless") == -1
        assert 0 < await client.pttl("short") <= 30
        assert 90_000 < await client.pttl("long") <= 100_000
        await asyncio.sleep(0.05)
        assert (await client.get("short"), await client.pttl("short")) == (None, -2)
        assert await client.pexpire("long", 5_000) == 1
        assert 0 < await client.pttl("long") <= 5_000
        assert await client.pexpire("none", 5_000) == 0
        await client.set("endless", "y", px=100_000)
        await client.set("endless", "z")
        assert await client.pttl("endless") == -1, "a new value has no end of its own"

    play(cache, scenario)


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "a"), ("SET", "a", "x", "PX"), ("SET", "a", "x", "NONSENSE"), ("GET",), ("GET", "a", "b"), ("PTTL",),
        ("NONSENSE", "a"), ("EVALSHA", "0" * 40), ("HELLO", "9"), ("SCRIPT", "LOAD", "no lua"),
    ],
)  # fmt: skip
def test_what_is_no_command_is_an_error_and_the_connection_goes_on(cache: CacheStage, command: tuple[str, ...]) -> None:
    async def scenario(client: Redis) -> None:
        async with client.client() as connection:
            with pytest.raises(ResponseError):
                await connection.execute_command(*command)
            assert await connection.ping()

    play(cache, scenario)


def test_a_key_of_another_type_is_an_error_where_it_is_read_and_gives_way_where_it_is_set(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        assert await client.lpush("list", "x") == 1
        with pytest.raises(ResponseError, match="wrong kind"):
            await client.get("list")
        assert await client.set("list", "y")
        assert await client.get("list") == b"y"
        with pytest.raises(ResponseError, match="wrong kind"):
            await client.lpush("list", "x")

    play(cache, scenario)


def test_answers_come_in_the_order_of_the_commands_an_error_in_its_place(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        await client.lpush("list", "x")
        async with client.pipeline(transaction=False) as pipeline:
            for number in range(50):
                pipeline.set(f"{number}", f"{number}").get(f"{number}").get("list")
            answers = await pipeline.execute(raise_on_error=False)
        assert answers[1::3] == [b"%d" % number for number in range(50)]
        assert all(isinstance(each, ResponseError) for each in answers[2::3])

    play(cache, scenario)


def test_a_script_is_run_once_it_is_loaded(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        with pytest.raises(NoScriptError):
            await client.evalsha("f" * 40, 0)
        sha = await client.script_load(UNLESS_FULLER)
        assert await client.evalsha(sha, 1, "a", b"value", 60_000, 7, 0.5, 0.9) == 1
        assert await client.get("a") == b"value"
        assert 0 < await client.pttl("a") <= 60_000

    play(cache, scenario)


@pytest.mark.parametrize("junk", [b"*1\r\n:1\r\n", b"*1\r\n$x\r\n", b"*99999999\r\n", b"*1\r\n$-5\r\n"])
def test_bytes_that_are_no_command_are_told_so_and_end_the_connection(cache: CacheStage, junk: bytes) -> None:
    async def main(url: str) -> None:
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(junk)
        async with asyncio.timeout(60):
            answer = await reader.read()
        assert b"Protocol error" in answer
        writer.close()

    cache.run(main)


def test_a_frozen_server_accepts_and_answers_when_it_thaws(cache: CacheStage) -> None:
    async def main(url: str) -> None:
        async with Redis.from_url(url) as client:
            await client.set("a", "x")
            with cache.frozen():
                asking = asyncio.create_task(client.get("a"))
                done, _ = await asyncio.wait({asking}, timeout=0.2)
                assert not done
            assert await asking == b"x"

    cache.run(main)
