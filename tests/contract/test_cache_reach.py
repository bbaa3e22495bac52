"""How far was looked: what of the cache serves whom, and what may replace what."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.retrieval.cache import CacheKey
from services.retrieval.freshness import ttl_jitter
from services.retrieval.search_params import SearchParams
from tests.contract.stages import CacheStage, with_cache
from tests.retrieval.cacherig import KEY, SECRET, Rig, rigged
from tests.retrieval.fakes import passage
from tests.retrieval.modelcache import ModelCache

FULL, LESS, LEAST = SearchParams(1.0, 5), SearchParams(0.5, 5), SearchParams(0.25, 5)


async def has(rig: Rig, params: SearchParams) -> tuple[str, bool]:
    """What is kept for whoever asks for so much, and whether it is fresh to them."""
    kept = await rig.get(params=params)
    assert kept is not None
    return kept.results[0].text, kept.fresh


async def put(rig: Rig, params: SearchParams, *, version: int = 7, is_stored: bool = True) -> None:
    await rig.try_put(results=[passage(f"{params.effort}")], params=params, version=version)
    assert rig.counted("not_stored") == (0 if is_stored else 1)


def test_what_looked_as_far_serves_and_what_did_not_is_a_fallback(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await put(rig, LESS)
        for asked in (LESS, LEAST, SearchParams(0.5, 4)):
            assert await has(rig, asked) == ("0.5", True)
        for asked in (FULL, SearchParams(0.51, 5), SearchParams(0.5, 6)):
            assert await has(rig, asked) == ("0.5", False)
        await put(rig, FULL)
        assert await has(rig, LEAST) == ("1.0", True)

    with_cache(cache, scenario)


def test_less_effort_does_not_replace_what_is_fresh_and_took_more(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await put(rig, FULL)
        await put(rig, LESS, is_stored=False)
        assert await has(rig, FULL) == ("1.0", True)

    with_cache(cache, scenario)


def test_it_replaces_what_is_of_an_older_corpus(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await put(rig, FULL, version=6)
        await put(rig, LESS, version=7)
        assert await has(rig, LESS) == ("0.5", True)

    with_cache(cache, scenario)


@pytest.mark.parametrize(("aged_s", "is_stored"), [(-2.0, False), (2.0, True)])
def test_it_replaces_what_is_not_fresh_any_more_by_its_share_of_life(
    cache: CacheStage, aged_s: float, is_stored: bool
) -> None:
    """Of 60 s to live and 100 s more as a fallback."""
    keys = [CacheKey("demo", f"query {number}", "model-1") for number in range(30)]
    key = min(keys, key=lambda key: ttl_jitter(key.digest(SECRET)))

    async def scenario(rig: Rig) -> None:
        await rig.put(key, params=FULL)
        digest = key.digest(SECRET)
        remaining_s = 160 - 60 * ttl_jitter(digest) - aged_s
        await rig.client.pexpire(digest, round(remaining_s * 1000))
        await rig.try_put(key, params=LESS)
        assert rig.counted("not_stored") == (0 if is_stored else 1)

    with_cache(cache, scenario)


@pytest.mark.parametrize("junk", [b"", b"\xff\x00junk", b"\x93\x01\x02\x03", b"\x98" + b"\xa1x" * 8, None])
def test_it_replaces_whatever_is_no_entry_of_ours(cache: CacheStage, junk: bytes | None) -> None:
    async def scenario(rig: Rig) -> None:
        digest = KEY.digest(SECRET)
        if junk is None:
            await rig.client.lpush(digest, "x")
        else:
            await rig.client.set(digest, junk)
        await put(rig, LESS)
        assert await has(rig, LESS) == ("0.5", True)

    with_cache(cache, scenario)


def test_of_many_writes_at_once_the_one_with_most_effort_stays(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        for round_ in range(20):
            key = CacheKey("demo", f"query {round_}", "model-1")
            done = rig.counted("stored") + rig.counted("not_stored")
            for effort in (0.5, 1.0, 0.25, 0.75):
                rig.cache.put(key, [passage(f"{effort}")], params=SearchParams(effort, 5), version=7, ttl_s=60.0)
            while rig.counted("stored") + rig.counted("not_stored") < done + 4:
                await asyncio.sleep(0.001)
            kept = await rig.get(key)
            assert kept is not None
            assert kept.results[0].text == "1.0"

    with_cache(cache, scenario)


NUMBERS = itertools.count()
REACHES = st.builds(SearchParams, st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([1, 3, 5]))
STEPS = st.lists(st.tuples(st.booleans(), REACHES, st.integers(6, 8)), max_size=12)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_is_kept_and_asked_it_is_as_the_model_says(
    cache: CacheStage, steps: list[tuple[bool, SearchParams, int]]
) -> None:
    key = CacheKey("demo", f"example {next(NUMBERS)}", "model-1")

    async def main(url: str) -> None:
        model = ModelCache(secret=SECRET)
        async with rigged(url) as rig:
            for number, (is_put, params, version) in enumerate(steps):
                results = [passage(f"result {number}")]
                if is_put:
                    await rig.try_put(key, results=results, params=params, version=version, ttl_s=600.0)
                    model.put(key, results, params=params, version=version, ttl_s=600.0)
                for effort, depth in itertools.product((0.25, 0.5, 1.0), (1, 3, 5)):
                    asked = SearchParams(effort, depth)
                    expected = await model.get(key, params=asked, version=version, ttl_s=600.0, budget_s=1.0)
                    got = await rig.get(key, params=asked, version=version, ttl_s=600.0)
                    assert (got and (got.results, got.params, got.fresh)) == (
                        expected and (expected.results, expected.params, expected.fresh)
                    )

    cache.run(main)
