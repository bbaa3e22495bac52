"""The picture of steps on the page about batching shows what the simulated engine does, step for step."""

from __future__ import annotations

import random

import pytest

from loadtests.simulator.pictures.batches import CHUNK_TOKENS, COST, SLOTS, pictured, stepped
from loadtests.simulator.stepping import Asked
from services.contracts.generate import GenerateRequest
from services.core.batcher import BatchFormer, Batching, Fire, Waiting
from services.worker.engine import Sequence
from services.worker.engines.simulated import LatencyModel, SimulatedEngine


def prepared(engine: SimulatedEngine, one: Asked) -> Sequence:
    request = GenerateRequest(
        id=one.id, tenant="t", deadline_ms=60_000, max_tokens=one.answer_tokens,
        prompt=" ".join(["word"] * one.prompt_tokens), ignore_eos=True,
    )  # fmt: skip
    sequence = engine.prepare(request)
    assert sequence.prompt_tokens == one.prompt_tokens
    sequence.deadline = one.deadline
    return sequence


def computed(batching: Batching) -> list[tuple[float, float, dict[str, int], set[str]]]:
    """When each step began and ended, who read how much in it, and who wrote."""
    engine = SimulatedEngine(
        model="m", slots=SLOTS, kv_tokens=10_000, prefill_chunk_tokens=CHUNK_TOKENS, chance=random.Random(1),
        latency=LatencyModel(COST.base_ms, COST.per_sequence_ms, COST.per_prefill_token_ms),
    )  # fmt: skip
    former: BatchFormer[Sequence] = BatchFormer(batching, slots=SLOTS, queue_size=9)
    coming = pictured()
    leaves_at_s = {one.id: one.leaves_at_s for one in coming}
    running: dict[str, Sequence] = {}
    now, steps = 0.0, []
    while coming or running or len(former):
        while coming and coming[0].at_s <= now:
            one = coming.pop(0)
            former.offer(Waiting(one.id, one.at_s, one.deadline, prepared(engine, one)), len(running))
        for id in [id for id in running if leaves_at_s[id] <= now]:
            engine.drop(running.pop(id))
        decision = former.decide(now, len(running))
        for waiting in decision.admit if isinstance(decision, Fire) else ():
            engine.admit(waiting.item)
            running[waiting.id] = waiting.item
        unread = {id: sequence.unread_tokens for id, sequence in running.items()}
        step = engine.step()
        reads = {id: unread[id] - each.unread_tokens for id, each in running.items() if each.unread_tokens < unread[id]}
        steps.append((now, now + step.duration_s, reads, {sequence.id for sequence, _ in step.tokens}))
        for sequence, _ in step.finished:
            del running[sequence.id]
        now += step.duration_s
    return steps


@pytest.mark.parametrize("batching", Batching)
def test_the_steps_in_the_picture_are_those_of_the_engine(batching: Batching):
    drawn = [(each.began_s, each.ended_s, each.reads, set(each.writes)) for each in stepped(batching).steps]
    for ours, its in zip(drawn, computed(batching), strict=True):
        assert ours[:2] == pytest.approx(its[:2])
        assert ours[2:] == its[2:]
