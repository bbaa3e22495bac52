"""The exact cache over a Valkey: what it keeps, what it refuses to believe, and what the server's faults cost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from services.retrieval.app import exact_cache
from services.retrieval.cache import MAX_ENTRY_BYTES, CacheEntry, CacheKey
from services.retrieval.config import RetrievalSettings
from services.retrieval.freshness import ttl_jitter
from services.runtime.settings import load
from tests.contract.stages import CacheStage, with_cache
from tests.retrieval.cacherig import KEY, PARAMS, RESULTS, SECRET, Rig
from tests.retrieval.fakes import passage

TIMEOUT_S = 0.02


def test_what_was_put_in_comes_out_fresh(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        assert await rig.get() is None
        await rig.put()
        kept = await rig.get()
        assert kept is not None
        assert (kept.results, kept.fresh) == (RESULTS, True)
        assert 0 <= kept.age_s < 30
        assert (rig.counted("miss"), rig.counted("hit")) == (1, 1)

    with_cache(cache, scenario)


@pytest.mark.parametrize(
    "other",
    [
        CacheKey("rival", KEY.query, "model-1"),
        CacheKey("demo", "How does a weir fail?", "model-1"),
        CacheKey("demo", KEY.query, "model-2"),
        CacheKey("demo", KEY.query, "model-1", hybrid=False),
    ],
    ids=["tenant", "query", "model", "hybrid"],
)
def test_another_tenant_query_model_or_kind_of_search_is_a_miss(cache: CacheStage, other: CacheKey) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.put()
        assert await rig.get(other) is None

    with_cache(cache, scenario)


def test_an_entry_of_another_corpus_version_or_past_its_time_is_stale_not_lost(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.put(version=7)
        for kept in (await rig.get(version=8), await rig.get(version=None), await rig.get(ttl_s=0.0)):
            assert kept is not None
            assert (kept.results, kept.fresh) == (RESULTS, False)
        assert rig.counted("stale") == 3

    with_cache(cache, scenario)


def test_age_is_what_has_gone_of_the_keys_life(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.put(ttl_s=60.0)
        await rig.client.pexpire(KEY.digest(SECRET), 130_000)  # of 160 s
        kept = await rig.get()
        assert kept is not None
        assert kept.fresh
        assert kept.age_s == pytest.approx(30, abs=5)
        await rig.client.pexpire(KEY.digest(SECRET), 90_000)
        kept = await rig.get()
        assert kept is not None
        assert not kept.fresh

    with_cache(cache, scenario)


def entry(**changed: object) -> bytes:
    """A sound entry for KEY, but for what is changed."""
    sound = {
        "key": KEY.digest(SECRET),
        "tenant": "demo",
        "version": 7,
        "fresh_s": 60.0,
        "life_s": 160.0,
        "cost_s": 0.1,
        "effort": 1.0,
        "depth": 5,
        "results": RESULTS,
    }
    return msgspec.msgpack.encode(CacheEntry(**(sound | changed)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff\x00junk",
        b"null",
        entry()[:-3],
        entry(tenant="rival"),
        entry(key=CacheKey("rival", KEY.query, "model-1").digest(SECRET)),
        entry(life_s=1.0),
        entry(life_s="soon"),
        entry(life_s=float("nan")),
        entry(life_s=float("inf")),
        entry(effort=1.5),
        entry(effort=float("nan")),
        entry() + b" " * MAX_ENTRY_BYTES,
    ],
    ids=[
        "empty",
        "bytes",
        "json",
        "cut off",
        "foreign tenant",
        "foreign key",
        "too old",
        "wrong type",
        "no number",
        "no end",
        "more than all effort",
        "no effort",
        "too long",
    ],
)
def test_what_we_did_not_store_ourselves_is_not_believed(cache: CacheStage, junk: bytes) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.client.set(KEY.digest(SECRET), junk, px=160_000)
        assert await rig.get() is None
        assert rig.counted("invalid") == 1
        await rig.put()
        assert await rig.get() is not None, "and it is overwritten by the next result"

    with_cache(cache, scenario)


def test_an_entry_without_an_end_is_not_believed_since_its_age_is_unknown(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.client.set(KEY.digest(SECRET), entry())
        assert await rig.get() is None

    with_cache(cache, scenario)


def test_a_reader_is_told_to_refresh_what_was_dear_to_find_and_nobody_what_is_not_fresh(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        async def told(entry: bytes, version: int) -> set[bool]:
            await rig.client.set(KEY.digest(SECRET), entry, px=155_000)
            seen = [await rig.get(version=version) for _ in range(50)]
            assert all(kept is not None and kept.fresh is (version == 7) for kept in seen)
            return {kept.refresh for kept in seen if kept is not None}

        assert await told(entry(cost_s=0.001), 7) == {False}, "a minute before its end"
        assert await told(entry(cost_s=60.0), 7) == {True, False}, "some are, and some have to go on using it"
        assert await told(entry(cost_s=60.0), 8) == {False}, "a search is due anyway"

    with_cache(cache, scenario)


def test_keys_of_one_age_and_one_time_to_live_do_not_expire_together(cache: CacheStage) -> None:
    keys = sorted(
        (CacheKey("demo", f"query {number}", "model-1") for number in range(50)),
        key=lambda key: ttl_jitter(key.digest(SECRET)),
    )

    async def scenario(rig: Rig) -> None:
        seen = []
        for key in (keys[0], keys[-1]):
            await rig.put(key, ttl_s=60.0)
            await rig.client.pexpire(key.digest(SECRET), 160_000 - 54_000)  # nine tenths of its time are over
            kept = await rig.get(key)
            assert kept is not None
            seen.append(kept.fresh)
        assert seen == [False, True]

    with_cache(cache, scenario)


def test_what_a_result_took_to_find_is_kept_with_it(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        rig.cache.put(KEY, RESULTS, params=PARAMS, version=7, ttl_s=60.0, cost_s=0.25)
        while (data := await rig.client.get(KEY.digest(SECRET))) is None:
            await asyncio.sleep(0.001)
        assert isinstance(data, bytes)
        assert msgspec.msgpack.decode(data, type=CacheEntry).cost_s == 0.25

    with_cache(cache, scenario)


def test_the_setting_is_the_secret_of_the_keys(cache: CacheStage) -> None:
    secret = "sixteen or more "

    async def main(url: str) -> None:
        chosen = load(RetrievalSettings, redis_url=url, cache_key_secret=secret, redis_timeout_ms=1000)
        rig = Rig(url)
        made = exact_cache(chosen, rig.metrics, rig.lines.log)
        made.put(KEY, RESULTS, params=PARAMS, version=7, ttl_s=60.0)
        while rig.counted("stored") + rig.counted("not_stored") == 0:
            await asyncio.sleep(0.001)
        assert await rig.client.get(KEY.digest(secret.encode())) is not None
        await made.stop()
        await rig.cache.stop()
        rig.lines.log.close()

    cache.run(main)


def test_a_key_of_another_type_is_a_miss_and_no_reason_to_distrust_the_server(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.client.lpush(KEY.digest(SECRET), "x")
        for _ in range(10):
            assert await rig.get() is None
        assert rig.counted("error") == 10
        assert rig.cache.up

    with_cache(cache, scenario)


def test_a_full_server_still_answers_and_what_it_does_not_take_is_counted(cache: CacheStage) -> None:
    async def scenario(rig: Rig) -> None:
        await rig.put()
        with cache.full():
            stored = rig.counted("stored")
            await rig.try_put(CacheKey("demo", "another", "model-1"))
            assert (rig.counted("stored"), rig.counted("not_stored") > 0) == (stored, True)
            assert await rig.get() is not None
            assert rig.cache.up

    with_cache(cache, scenario)


def test_a_frozen_server_costs_three_short_waits_and_comes_back_by_itself(cache: CacheStage) -> None:
    async def took(rig: Rig) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await rig.get() is None
        return loop.time() - began

    async def scenario(rig: Rig) -> None:
        await rig.put()
        await rig.cache.start()
        await rig.get()
        with cache.frozen():
            waits = [await took(rig) for _ in range(200)]
        assert rig.counted("error") <= 10, "three, and those in which this process itself was away for too long"
        assert rig.counted("skipped") >= 190
        assert sum(wait_s > TIMEOUT_S / 2 for wait_s in waits) <= 10, "and the others do not wait for it"
        async with asyncio.timeout(20):
            while await rig.get() is None:
                await asyncio.sleep(0.05)
        logged = rig.lines.read()
        assert (logged.count("redis is down"), logged.count("redis is up")) == (1, 1)

    with_cache(cache, scenario, timeout_s=TIMEOUT_S, open_for_s=0.2, max_open_s=0.4)


def test_requests_that_are_cut_off_never_get_each_others_answers(cache: CacheStage) -> None:
    """A cancelled command leaves its answer on the wire; the connection must go with it (CVE-2023-28858)."""

    async def scenario(rig: Rig) -> None:
        keys = [CacheKey("demo", f"query {number}", "model-1") for number in range(20)]
        for number, key in enumerate(keys):
            rig.cache.put(key, [passage(f"answer {number}")], params=PARAMS, version=7, ttl_s=60.0)
        while rig.counted("stored") < len(keys):
            await asyncio.sleep(0.005)

        async def ask(number: int, client_timeout_s: float) -> None:
            try:
                async with asyncio.timeout(client_timeout_s):
                    kept = await rig.get(keys[number])
            except TimeoutError:
                return
            assert kept is None or kept.results[0].text == f"answer {number}"

        for attempt in range(40):
            await asyncio.gather(*(ask(number, 0.0002 * ((attempt + number) % 20)) for number in range(20)))
        assert rig.counted("invalid") == 0

    with_cache(cache, scenario, failures_to_open=10_000)
