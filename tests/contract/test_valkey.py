"""What a Valkey does for the client library: the commands, their errors, the bounds of its memory, its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from services.retrieval.cache import UNLESS_FULLER
from tests.contract.stages import CacheStage

ROOM_BYTES = 400_000
VALUE = b"\x00\xff\r\n$5\r\n" * 100


def play(stage: CacheStage, scenario: Callable[[Redis], Awaitable[None]], protocol: int = 3) -> None:
    async def main(url: str) -> None:
        async with Redis.from_url(url, protocol=protocol) as client, asyncio.timeout(60):
            await scenario(client)

    stage.run(main)


@pytest.mark.parametrize("protocol", [2, 3])
def test_what_is_set_is_got_byte_by_byte_until_it_is_deleted(cache: CacheStage, protocol: int) -> None:
    async def scenario(client: Redis) -> None:
        assert await client.ping()
        assert await client.get("a") is None
        assert await client.set("a", VALUE)
        assert await client.set("big", b"x" * 300_000)
        assert await client.get("a") == VALUE
        assert len(await client.get("big")) == 300_000
        assert await client.mget("a", "none", "big") == [VALUE, None, b"x" * 300_000]
        assert await client.exists("a", "none", "a") == 2
        assert await client.delete("a", "none") == 1
        assert await client.get("a") is None

    play(cache, scenario, protocol)


def test_a_key_ends_when_its_time_is_over_and_says_how_much_is_left(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        await client.set("endless", "x")
        await client.set("short", "x", px=30)
        await client.set("long", "x", ex=100)
        assert await client.pttl("none") == -2
        assert await client.pttl("endless") == -1
        assert 0 < await client.pttl("short") <= 30
        assert 90_000 < await client.pttl("long") <= 100_000
        await asyncio.sleep(0.05)
        assert (await client.get("short"), await client.pttl("short")) == (None, -2)
        assert await client.pexpire("long", 5_000) == 1
        assert 0 < await client.pttl("long") <= 5_000
        assert await client.pexpire("none", 5_000) == 0
        assert await client.pexpire("long", 0) == 1
        assert await client.exists("long") == 0
        await client.set("endless", "y", px=100_000)
        await client.set("endless", "z")
        assert await client.pttl("endless") == -1, "a new value has no end of its own"

    play(cache, scenario)


def test_a_key_is_set_only_where_there_is_none_or_only_where_there_is_one(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        assert await client.set("a", "x", xx=True) is None
        assert await client.set("a", "x", nx=True, px=100_000)
        assert await client.set("a", "y", nx=True) is None
        assert await client.get("a") == b"x"
        assert await client.set("a", "z", xx=True)
        assert await client.get("a") == b"z"

    play(cache, scenario)


@pytest.mark.parametrize(
    "command",
    [
        ("SET", "a"), ("SET", "a", "x", "PX"), ("SET", "a", "x", "PX", "0"), ("SET", "a", "x", "PX", "soon"),
        ("SET", "a", "x", "NX", "XX"), ("SET", "a", "x", "NONSENSE"), ("GET",), ("GET", "a", "b"), ("PTTL",),
        ("NONSENSE", "a"), ("PEXPIRE", "a", "soon"), ("EVALSHA", "0" * 40), ("HELLO", "9"),
        ("SCRIPT", "LOAD", "no lua"),
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
        assert await client.lpush("list", "x", "y") == 2
        await client.set("a", "x")
        with pytest.raises(ResponseError, match="wrong kind"):
            await client.get("list")
        with pytest.raises(ResponseError, match="wrong kind"):
            await client.lpush("a", "x")
        assert await client.mget("list", "a") == [None, b"x"]
        assert await client.set("list", "y")
        assert await client.get("list") == b"y"

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


def test_a_script_is_run_once_it_is_loaded_and_goes_with_flushall_or_stays(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        with pytest.raises(NoScriptError):
            await client.evalsha("f" * 40, 0)
        sha = await client.script_load(UNLESS_FULLER)
        arguments = (b"value", 60_000, 7, 0.5, 0.9)
        assert await client.evalsha(sha, 1, "a", *arguments) == 1
        assert await client.get("a") == b"value"
        assert 0 < await client.pttl("a") <= 60_000
        assert await client.eval(UNLESS_FULLER, 1, "b", *arguments) == 1
        await client.flushall()
        assert (await client.dbsize(), await client.get("a")) == (0, None)
        assert await client.evalsha(sha, 1, "a", *arguments) == 1

    play(cache, scenario)


async def limited(client: Redis, scenario: Callable[[], Awaitable[None]], *, policy: str, room: int) -> None:
    """With only so much more memory than is used now."""
    before = {**await client.config_get("maxmemory"), **await client.config_get("maxmemory-policy")}
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory-policy", policy)
    await client.config_set("maxmemory", used + room)
    try:
        await scenario()
    finally:
        for name, value in before.items():
            await client.config_set(name, value)


async def fill(client: Redis) -> None:
    for number in range(1000):
        assert await client.set(f"key {number}", b"x" * 1000)


def test_where_there_is_no_room_left_the_least_used_give_way_and_nothing_is_refused(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        async def write() -> None:
            await fill(client)
            assert 0 < await client.dbsize() < 1000
            assert await client.get("key 999") == b"x" * 1000
            assert await client.delete("key 999") == 1

        await limited(client, write, policy="allkeys-lru", room=ROOM_BYTES)

    play(cache, scenario)


def test_where_nothing_may_give_way_what_needs_memory_is_refused_and_the_rest_goes_on(cache: CacheStage) -> None:
    async def scenario(client: Redis) -> None:
        await client.set("a", "x")
        sha = await client.script_load(UNLESS_FULLER)

        async def write() -> None:
            with pytest.raises(OutOfMemoryError):
                await fill(client)
            with pytest.raises(ResponseError):
                await client.evalsha(sha, 1, "b", b"x" * ROOM_BYTES, 60_000, 7, 0.5, 0.9)
            assert await client.get("a") == b"x"
            assert await client.pexpire("a", 5_000) == 1
            assert await client.delete("a") == 1

        await limited(client, write, policy="noeviction", room=ROOM_BYTES)
        assert await client.set("a", "y")

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
