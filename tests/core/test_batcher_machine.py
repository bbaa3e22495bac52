"""Whatever arrives, ends, is cancelled, and however slots and memory change: what the batch former promises holds."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.batcher import Batching, Fire, Wait, Waiting
from tests.core.batches import former, ids, waiting

MEMORY = 100
SLACKS = st.floats(0.001, 2.0) | st.sampled_from([0.5, math.inf])
SIZES = st.just(0) | st.integers(1, MEMORY)
MAYBE_S = st.just(0.0) | st.floats(0.0, 1.0)


class AnyHistory(RuleBasedStateMachine):
    """A reference engine, and whatever may happen to it. A decision is asked for at the moments the shell would ask:
    after each event, and when the last answer wanted waking."""

    @initialize(
        batching=st.sampled_from(Batching), slots=st.integers(1, 4), queue_size=st.integers(1, 4),
        window_s=st.floats(0, 0.2),
    )  # fmt: skip
    def begin(self, batching, slots, queue_size, window_s):
        self.line = former(batching, slots=slots, queue_size=queue_size, window_s=window_s)
        self.now = 0.0
        self.memory = MEMORY
        self.offers = 0
        self.waits: dict[str, Waiting[str]] = {}  # the model of the line, in order of arrival
        self.running: list[Waiting[str]] = []
        self.decision: Fire[str] | Wait[str] = Wait(None)
        self.stale = False
        """Someone was cancelled since: the moment that was named may be the one that went."""

    @property
    def free_tokens(self) -> int:
        return self.memory - sum(one.tokens for one in self.running)

    @property
    def room(self) -> int:
        if self.line.batching is Batching.STATIC and self.running:
            return 0
        return max(0, self.line.slots - len(self.running))

    @rule(slack_s=SLACKS, service_s=MAYBE_S, tokens=SIZES, ready_s=MAYBE_S)
    def arrive(self, slack_s, service_s, tokens, ready_s):
        tokens = min(tokens, self.memory)  # larger ones are refused before
        one = waiting(
            f"r{self.offers}", self.now, self.now + slack_s, service_s, tokens=tokens, ready_s=min(ready_s, slack_s)
        )
        fits = len(self.running) + len(self.waits) < self.line.slots + self.line.queue_size
        assert self.line.offer(one, len(self.running)) == fits
        if fits:
            self.offers += 1
            self.waits[one.id] = one
        self.decide()

    @precondition(lambda self: self.waits)
    @rule(choice=st.integers(0, 99))
    def cancel(self, choice):
        """No decision follows: a shell does not wake for it. Those behind a head that did not fit go in at the next
        step, and a step comes: what it did not fit beside runs."""
        id = list(self.waits)[choice % len(self.waits)]
        held_up_others = self.room > 0 and self.in_order()[0].id == id and self.waits[id].tokens > self.free_tokens
        del self.waits[id]
        self.stale = True
        assert self.line.discard(id)
        assert not self.line.discard(id)
        if held_up_others:
            assert self.running
            self.decide()

    @precondition(lambda self: self.running)
    @rule(choice=st.integers(0, 99))
    def end(self, choice):
        self.running.pop(choice % len(self.running))
        self.decide()

    @rule(slots=st.integers(1, 4))
    def resize(self, slots):
        self.line.resize(slots)
        self.decide()

    @rule(memory=st.integers(MEMORY // 2, MEMORY))
    def change_memory(self, memory):
        """Those who never fit any more are sent away by whoever sees it shrink."""
        self.memory = memory
        for id in [id for id, one in self.waits.items() if one.tokens > memory]:
            del self.waits[id]
            assert self.line.discard(id)
        self.decide()

    @rule(passes_s=st.floats(0.0, 0.5))
    def pass_time(self, passes_s):
        """The shell is woken when it asked to be. Before that, the answer would have been to wait."""
        until = self.now + passes_s
        while (woken := self.wakes_at()) <= until:
            self.nothing_happens_before(woken)
            assert woken > self.now
            self.now = woken
            waited, stale = len(self.waits), self.stale
            self.decide()
            assert stale or len(self.waits) < waited
        self.nothing_happens_before(math.nextafter(until, math.inf))
        self.now = until
        self.decide()

    def wakes_at(self) -> float:
        if isinstance(self.decision, Fire):
            self.decide()
        assert isinstance(self.decision, Wait)
        return math.inf if self.decision.until is None else self.decision.until

    def nothing_happens_before(self, moment: float) -> None:
        for just_before in (math.nextafter(moment, -math.inf), (self.now + moment) / 2):
            if self.now < just_before < moment:
                assert isinstance(self.line.decide(just_before, len(self.running), self.free_tokens), Wait)
                assert len(self.line) == len(self.waits)  # nobody expired either

    def decide(self) -> None:
        dead, expected = self.expected()
        free_tokens, room = self.free_tokens, self.room
        self.decision = self.line.decide(self.now, len(self.running), free_tokens)
        self.stale = False
        assert sorted(ids(self.decision.expired)) == sorted(dead)
        admit = self.decision.admit if isinstance(self.decision, Fire) else ()
        assert ids(admit) == expected
        assert (len(admit) > 0) == isinstance(self.decision, Fire)
        assert len(admit) <= room
        assert not admit or sum(one.tokens for one in admit) <= free_tokens
        for id in dead + ids(admit):
            del self.waits[id]
        self.running += admit
        if isinstance(self.decision, Wait) and self.decision.until is not None:
            assert self.decision.until > self.now
        self.nobody_went_past_anybody(admit)
        self.no_slot_is_free_while_the_head_of_the_line_fits()

    def nobody_went_past_anybody(self, admit: tuple[Waiting[str], ...]) -> None:
        left = self.in_order()
        assert not left or all(one.deadline <= left[0].deadline for one in admit)

    def no_slot_is_free_while_the_head_of_the_line_fits(self) -> None:
        left = self.in_order()
        if left and self.line.batching is Batching.CONTINUOUS:
            assert self.room == 0 or left[0].tokens > self.free_tokens

    def in_order(self) -> list[Waiting[str]]:
        return sorted(self.waits.values(), key=lambda one: one.deadline)  # stable: equal ones in order of arrival

    def expected(self) -> tuple[list[str], list[str]]:
        """Who leaves in vain and who starts: the rules again, in the plainest words."""
        dead = [one.id for one in self.in_order() if one.deadline <= self.now]
        there = [one for one in self.in_order() if one.id not in dead]
        batch: list[Waiting[str]] = []
        while there and len(batch) < self.room:
            head = there[0]
            if self.now >= head.deadline - head.ready_s:
                dead.append(head.id)
            elif sum(one.tokens for one in (*self.running, *batch, head)) <= self.memory:
                batch.append(head)
            else:
                break
            there.pop(0)
        return dead, [one.id for one in batch] if self.may_fire(batch, there) else []

    def may_fire(self, batch: list[Waiting[str]], others: list[Waiting[str]]) -> bool:
        if self.line.batching is Batching.CONTINUOUS or others or len(batch) == self.line.slots:
            return True
        first = min(batch, key=lambda one: int(one.id[1:]), default=None)
        return first is not None and (
            self.now >= first.arrived_at + self.line.window_s
            or any(self.now >= one.deadline - one.service_s for one in batch)
        )

    @invariant()
    def bounds(self):
        assert len(self.line) == len(self.waits)

    def teardown(self):
        if hasattr(self, "line"):
            assert ids(self.line.flush()) == [one.id for one in self.in_order()]
            assert len(self.line) == 0


TestAnyHistory = AnyHistory.TestCase
