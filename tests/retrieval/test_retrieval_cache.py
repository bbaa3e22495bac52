"""The cache without a server: its keys, what it does not even try to store, and a server that is not there."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.cache import MAX_ENTRY_BYTES, PREFIX, CacheKey
from services.retrieval.config import RetrievalSettings
from services.runtime.settings import load
from tests.retrieval.cacherig import KEY, PARAMS, RESULTS, SECRET, Rig, without_redis
from tests.retrieval.fakes import passage

TEXT = st.text(max_size=20)


PARTS = st.tuples(TEXT, TEXT, TEXT, st.booleans())


@given(PARTS, PARTS)
def test_two_keys_are_equal_only_if_every_part_is(
    one: tuple[str, str, str, bool], other: tuple[str, str, str, bool]
) -> None:
    assert (CacheKey(*one).digest(SECRET) == CacheKey(*other).digest(SECRET)) is (one == other)


def test_parts_that_run_together_differently_are_different_keys() -> None:
    assert CacheKey("ab", "c", "m").digest(SECRET) != CacheKey("a", "bc", "m").digest(SECRET)
    assert CacheKey("a", "b", "m").digest(SECRET) != CacheKey("a", "1b", "m").digest(SECRET)
    assert CacheKey("a", "b", "mx").digest(SECRET) != CacheKey("xa", "b", "m").digest(SECRET)


def test_a_key_tells_nothing_of_the_query() -> None:
    assert KEY.digest(SECRET).removeprefix(PREFIX).isalnum()
    assert "weir work" not in KEY.digest(SECRET)
    assert KEY.digest(SECRET) != KEY.digest(b"another"), "and without the secret a guess at it cannot be tested"


def test_a_short_secret_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(RetrievalSettings, cache_key_secret="too short")
    said = capsys.readouterr().err
    assert "CACHE_KEY_SECRET" in said
    assert "too short" not in said


def test_nothing_is_stored_without_a_time_to_live_or_without_results() -> None:
    async def scenario(rig: Rig) -> None:
        rig.cache.put(KEY, RESULTS, params=PARAMS, version=7, ttl_s=0.0)
        rig.cache.put(KEY, [], params=PARAMS, version=7, ttl_s=60.0)
        rig.cache.put(KEY, [passage("x" * MAX_ENTRY_BYTES)], params=PARAMS, version=7, ttl_s=60.0)
        await asyncio.sleep(0)
        assert (rig.counted("stored"), rig.counted("not_stored")) == (0, 1)

    without_redis(scenario)


@pytest.mark.sockets
def test_a_server_that_is_not_there_is_a_miss_and_after_three_is_not_asked() -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(10):
            assert await rig.get() is None
        assert not rig.cache.up
        assert (rig.counted("error"), rig.counted("skipped")) == (3, 7)
        assert rig.lines.read().count("redis is down") == 1

    without_redis(scenario)
