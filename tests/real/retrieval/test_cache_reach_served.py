"""How far was looked, in a whole service: what serves, and what is a fallback."""

from __future__ import annotations

from services.retrieval.reach import Reach
from tests.retrieval.cacherig import Rig, with_redis
from tests.retrieval.fakes import passage

FULL, LESS, LEAST = Reach(1.0, 5), Reach(0.5, 5), Reach(0.25, 5)


async def has(rig: Rig, reach: Reach) -> tuple[str, bool]:
    """What is kept for whoever asks for so much, and whether it is fresh to them."""
    kept = await rig.get(reach=reach)
    assert kept is not None
    return kept.results[0].text, kept.fresh


async def put(rig: Rig, reach: Reach, *, version: int = 7, is_stored: bool = True) -> None:
    await rig.try_put(results=[passage(f"{reach.effort}")], reach=reach, version=version)
    assert rig.counted("not_stored") == (0 if is_stored else 1)


def test_what_looked_as_far_serves_and_what_did_not_is_a_fallback(redis_url: str) -> None:
    async def scenario(rig: Rig) -> None:
        await put(rig, LESS)
        for asked in (LESS, LEAST, Reach(0.5, 4)):
            assert await has(rig, asked) == ("0.5", True)
        for asked in (FULL, Reach(0.51, 5), Reach(0.5, 6)):
            assert await has(rig, asked) == ("0.5", False)
        await put(rig, FULL)
        assert await has(rig, LEAST) == ("1.0", True)

    with_redis(redis_url, scenario)
