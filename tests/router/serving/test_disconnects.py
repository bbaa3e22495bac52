"""A client that leaves, at any stage and in any way: what it held is free at once, and nothing of it stays."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sized

import pytest

from services.core.outcome import Outcome
from tests.router.leaver import Way
from tests.router.leaving import Left, Scene, scene
from tests.router.stepping import AT_A_WORKER, NOT_YET_ASKED, Stage
from tests.runtime.rig import until
from tests.virtual import run

EACH, FIRST = 100, 9
"""How many leave at each stage; how many before them, so that what is made once is there."""
WAYS = (Way.FIN, Way.RST, Way.HALF)
GENEROUS_S = 5.0
"""Beside whatever else the machine does. What is promised, 100 ms, is measured by `make integrity`."""

both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
every_stage = pytest.mark.parametrize("stage", list(Stage), ids=lambda stage: stage.value)


@both
@every_stage
def test_whoever_leaves_gives_everything_back(
    stage: Stage, stream: bool, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    async def main() -> None:
        async with scene(stage, monkeypatch, stream=stream) as here:
            holder = await here.hold_the_slot() if stage is Stage.QUEUED else None
            await come_and_go(here, "first", FIRST)
            if holder is not None:
                holder.leave()
            before = await here.at_rest()
            holder = await here.hold_the_slot() if stage is Stage.QUEUED else None
            left_at = await come_and_go(here, "client", EACH)
            if holder is not None:
                holder.leave()
            after = await here.at_rest(before)
            assert after.of_requests == {}
            assert after.more(before, at_least=EACH * 0.8) == {}  # a heap may hold 64 that have ended
            record_property("slot_free_ms", freed(here, left_at))
            await check_ends(here)
            await check_workers(here)

    run(main)


def test_what_an_abstract_class_has_learned_of_others_is_not_left_by_requests() -> None:
    kinds = [type(f"Kind{number}", (), {}) for number in range(EACH)]
    before = Left((0, 0))
    assert not any(isinstance(kind(), Sized) for kind in kinds)
    assert Left((0, 0)).more(before, at_least=EACH * 0.8) == {}


async def come_and_go(here: Scene, name: str, count: int) -> dict[str, float]:
    """When each of them left."""
    clients = await here.arrive([f"{name}-{number}" for number in range(count)], WAYS)
    await here.all_leave(clients)
    await here.all_gone(clients)
    here.go.clear()
    return {client.id: client.left_at for client in clients}


def freed(here: Scene, left_at: dict[str, float]) -> str:
    """How long each held its place after it had left."""
    ends = here.dispatcher.ended_at
    seconds = [ends[id] - left for id, left in left_at.items() if id in ends]
    if len(seconds) < EACH:
        return "held none"
    p50, p99 = (statistics.quantiles(seconds, n=100)[at] for at in (49, 98))
    assert p99 < GENEROUS_S
    return f"p50 {p50 * 1000:.1f}, p99 {p99 * 1000:.1f}"


async def check_ends(here: Scene) -> None:
    """Each request that was asked has ended once: for the core, in the metric, and in the log with its status."""
    if here.stage in NOT_YET_ASKED:
        assert await here.stand.counted() == {}
        return
    ends = Counter(here.dispatcher.outcomes.values())
    assert set(ends) <= POSSIBLE.get(here.stage, {Outcome.CLIENT_GONE})
    assert await here.stand.counted() == ends
    lines = [line for line in await here.log_lines(sum(ends.values())) if line["path"] != "other"]
    assert Counter(line["outcome"] for line in lines) == ends
    assert {line["outcome"]: line["status"] for line in lines} == {end: STATUS[end] for end in ends}


STATUS = {Outcome.CLIENT_GONE: 499, Outcome.SERVED: 200}
POSSIBLE = {Stage.AFTER: {Outcome.SERVED}, Stage.LAST_TOKEN: {Outcome.SERVED, Outcome.CLIENT_GONE}}


async def check_workers(here: Scene) -> None:
    """Whoever worked for nobody was told so: by a socket that closed, and by a word."""
    if here.stage is Stage.RETRIEVAL:
        await until(lambda: here.retrieval.left == FIRST + EACH, "retrieval let go")
    elif here.stage in AT_A_WORKER and here.stage is not Stage.LAST_TOKEN:
        await until(lambda: sum(worker.left for worker in here.workers) == FIRST + EACH, "every worker let go")
        told = [id for worker in here.workers for id in worker.cancelled]
        assert len(told) == len(set(told)) == FIRST + EACH
    elif here.stage in (Stage.AFTER, *NOT_YET_ASKED):
        assert not any(worker.cancelled for worker in here.workers)
