"""Whatever is offered, started, cancelled, lost or late: each request ends once, and every book agrees with the slots.

The machine keeps its own count of all that it has been told. It is also the executor: it starts what it is given,
knows how long each answer takes, and lets slots come and go under the running.
"""

from __future__ import annotations

from math import inf, isfinite
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.admission import TURN_S
from services.core.admissioncheck import CONGESTED, ROOM_PROMPTS, Admitted, Rejection
from services.core.choices import SchedulerSettings
from services.core.estimator import PROBABLE, Estimator
from services.core.ladder import LADDER, LadderSizes
from services.core.outcome import Ending, Outcome
from services.core.request import Request, Stage
from services.core.scheduler import Scheduler
from tests.core.books import IDLE_TENANTS, KNOWN, PER_SLOT_S, POOLS, PREFILL_S, STRANGERS, TOKEN_S, Books

RETRIABLE = {"no_worker", "standing_queue", "no_slot", "deadline", "first_token"}


class Executor(Books):
    @initialize(
        quantum=st.sampled_from([None, 100.0, 2000.0]),
        announced=st.booleans(),
        off=st.sets(
            st.sampled_from(["clamp", "standing_queue", "calibrate", "measured_rounds", "degrade"]), max_size=2
        ),
        least=st.sampled_from([1, 4]),
    )
    def open(self, quantum: float | None, announced: bool, off: set[str], least: int) -> None:
        self.settings = SchedulerSettings(
            bounds=QueueBounds(12, 12000, 2000),
            unconfigured=TenantSpec("", QueueBounds(3, 3000, 600)),
            classes=(ClassSpec("default", 1.0, 0.1), ClassSpec("gold", 4.0)),
            idle_tenants=IDLE_TENANTS,
            quantum_tokens=quantum,
            min_answer_tokens=least,
            strict=True,
            **dict.fromkeys(off, False),  # type: ignore[arg-type]
        )
        self.scheduler = Scheduler(self.settings, self.random)
        for spec in KNOWN.values():
            self.configure(spec)
        self.announced = announced
        for pool in POOLS:
            if announced:
                self.scheduler.announce(
                    pool,
                    Estimator(work_per_slot_s=PER_SLOT_S, prefill_s_per_token=PREFILL_S, s_per_token=TOKEN_S),
                )
            self.resize(pool, 2)

    # ---- the door

    @rule(
        tenant=st.sampled_from([*KNOWN, *STRANGERS]),
        pool=st.sampled_from(POOLS),
        slack_s=st.sampled_from([-1.0, 0.0, 0.05, 0.3, 1.0, 1.0, 3.0, 10.0, 60.0]),
        prompt=st.sampled_from([1, 50, 50, 500, 5000]),
        context=st.sampled_from([0, 0, 800]),
        asked=st.sampled_from([1, 8, 40, 200]),
        share=st.floats(0, 1),
        size=st.sampled_from([0, 0, 100, 700]),
        max_level=st.sampled_from([0, 0, 1, 4, 9]),
        may_clamp=st.booleans(),
        ready=st.sampled_from([True, True, False]),
        count=st.sampled_from([1, 1, 1, 2, 5]),
        patience_s=st.sampled_from([inf, inf, 0.0, 0.1, 2.0]),
        first_token_s=st.sampled_from([inf, inf, 0.0, 0.02, 0.5, 2.0]),
        class_name=st.sampled_from(["", "", "default", "gold", "none such"]),
        at_once=st.booleans(),
    )
    def offer(
        self,
        tenant: str,
        pool: str,
        slack_s: float,
        prompt: int,
        context: int,
        asked: int,
        share: float,
        size: int,
        max_level: int,
        may_clamp: bool,
        ready: bool,
        count: int,
        patience_s: float = inf,
        first_token_s: float = inf,
        class_name: str = "",
        at_once: bool = False,
    ) -> None:
        for _ in range(count):
            request = Request(
                len(self.stages),
                tenant,
                self.now,
                self.now + slack_s,
                prompt_tokens=prompt,
                max_tokens=asked,
                context_tokens=context,
                bytes=size,
                pool=pool,
                max_level=max_level,
                may_clamp=may_clamp,
                ready=ready,
                start_by=self.now + patience_s,
                first_token_by=self.now + first_token_s,
                class_name=class_name,
            )
            self.answers[request] = max(1, round(share * asked))
            self.stages[request] = Stage.NEW
            self.at[Stage.NEW][request] = None
            waiting = self.of(Stage.WAITING, pool)
            free = self.free(pool) > len(waiting) and not any(each.ready for each in waiting)
            may_start = at_once and self.free(pool) > 0
            said = self.scheduler.admit(self.now, request, self.fits if may_start else None)
            assert isfinite(said.predicted_wait_s)
            assert said.predicted_wait_s >= 0
            if isinstance(said, Rejection):
                self.refused(request, said, free)
            else:
                assert free or patience_s > 0, "it would not wait at all"
                self.admitted(request, said, max_level)

    @rule(seed=st.integers(0, 999), ticks=st.integers(5, 30), most=st.integers(1, 6), calm=st.booleans())
    def traffic(self, seed: int, ticks: int, most: int, calm: bool) -> None:
        """A second or so in which many come, run, change their minds and fail. What a few single rules seldom reach."""
        random = Random(seed)
        known = [*KNOWN, *random.sample(STRANGERS, 2)]
        slack_s = random.choice([0.3, 1.0, 3.0])
        for _ in range(ticks):
            for _ in range(random.randint(0, most)):
                self.offer(
                    tenant=random.choice(known),
                    pool=random.choice(("default", "default", "other")),
                    slack_s=slack_s * random.choice([0.5, 1.0, 1.0, 2.0]),
                    prompt=random.choice([20, 50, 200]),
                    context=random.choice([0, 0, 1000]),
                    asked=random.choice([8, 20, 60]),
                    share=random.random(),
                    size=random.choice([0, 50]),
                    max_level=random.choice([0, 4]),
                    may_clamp=random.random() < 0.4,
                    ready=random.random() < 0.8,
                    count=1,
                    patience_s=random.choice([inf, inf, 0.0, 0.3]),
                    first_token_s=random.choice([inf, inf, 0.3, 1.0]),
                    class_name=random.choice(["", "", "default"]),
                    at_once=random.random() < 0.5,
                )
            for request in self.of(Stage.WAITING):
                if not request.ready and random.random() < 0.4:
                    self.scheduler.ready(self.now, request)
            if not calm and self.of(Stage.RUNNING) and random.random() < 0.2:
                stopped = random.choice(self.of(Stage.RUNNING))
                self.finish(
                    stopped, random.choice([Outcome.CLIENT_GONE, Outcome.UPSTREAM_FAILED]), self.written(stopped)
                )
            if not calm and random.random() < 0.1:
                self.resize(random.choice(POOLS), random.randint(1, 4), fail=random.random() < 0.5)
            if not calm and random.random() < 0.1:
                self.switch(*(random.random() < 0.6 for _ in range(3)))
            if random.random() < 0.7:
                self.expire()
            for pool in POOLS:
                self.serve(pool)
            self.let_time_pass(random.choice([0.02, 0.05, 0.2]))
            self.books_agree()

    def books_agree(self) -> None:
        self.slots_are_counted()
        self.books_are_those_of_the_waiting()
        self.running_and_charged_are_counted_per_tenant()

    def admitted(self, request: Request, said: Admitted, max_level: int) -> None:
        waiting_before = self.of(Stage.WAITING, request.pool)
        assert self.slots[request.pool] > 0
        judged = self.policies.admission
        assert request.deadline > self.now or not judged
        assert 0 <= said.level <= min(max_level, len(LADDER) - 1)
        assert said.level == request.level
        assert request.charge_tokens > 0
        assert said.predicted_wait_s <= max(0.0, request.start_by - self.now) or not judged
        assert said.level == 0 or judged
        self.stands_in_its_class(request)
        waits_s = self.scheduler.forecast(request)
        assert all(isfinite(wait_s) and wait_s >= 0 for wait_s in waits_s)
        assert waits_s == sorted(waits_s)
        if request.stage is Stage.RUNNING:
            assert not waiting_before, "others were first"
            self.starts(request)
        else:
            self.moves(request, Stage.WAITING)
        for waiting, bounds in (
            (self.of(Stage.WAITING), self.settings.bounds),
            (self.of(Stage.WAITING, tenant=request.tenant), self.bounds(request.tenant)),
        )[: 1 + self.policies.own_bounds]:
            assert len(waiting) <= bounds.requests
            assert sum(each.charge_tokens for each in waiting) <= bounds.cost_tokens + 1e-6
            assert sum(each.bytes for each in waiting) <= bounds.bytes

    def refused(self, request: Request, said: Rejection, free: bool) -> None:
        assert request.stage is Stage.NEW
        assert said.outcome.ending is Ending.REJECTED
        assert said.scope in ("tenant", "platform")
        if said.retry_hint_s is not None:
            assert 0.05 <= said.retry_hint_s <= 30
        if said.reason in RETRIABLE:
            assert said.retry_hint_s is not None
        if said.reason == "too_long":
            assert said.retry_hint_s is None
        if request.deadline <= self.now and said.outcome is Outcome.DEADLINE_INFEASIBLE:
            assert said.retry_hint_s is None, "it can never fit"
        if said.outcome is Outcome.NO_CAPACITY:
            assert self.slots[request.pool] == 0
        if free:
            assert said.reason != "no_slot", "there is one"
        if free and said.outcome is Outcome.DEADLINE_INFEASIBLE:
            prompt = request.prompt_tokens + LadderSizes(LADDER).contexts(request.context_tokens)[request.max_level]
            pool_stats = self.scheduler.pools[request.pool]
            per_token_s, waiting = pool_stats.estimator.prefill_model.per_token_before_s, pool_stats.pool.unread_tokens
            read_s = pool_stats.estimator.prefill_s(prompt) + per_token_s * waiting
            most = request.prompt_tokens + request.context_tokens
            prefill_backlog_s = pool_stats.estimator.prefill_backlog_s(waiting + ROOM_PROMPTS * most)
            if prefill_backlog_s <= CONGESTED * (request.deadline - self.now):
                assert read_s >= request.due_at - self.now, "refused on a guess while a slot is free"
        self.ends(request, "refused")

    # ---- the line

    @precondition(lambda self: self.of(Stage.WAITING))
    @rule(data=st.data())
    def make_ready(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.of(Stage.WAITING)))
        was_ready, would_expire = request.ready, request.expires_at
        self.scheduler.ready(self.now, request)
        assert request.ready
        assert request.expires_at <= would_expire
        if not was_ready:
            assert request.expires_at <= self.now + request.start_by - request.queued_at + TURN_S

    @precondition(lambda self: self.of(Stage.WAITING))
    @rule(data=st.data(), prompt=st.sampled_from([1, 60, 2000]))
    def count_its_prompt(self, data: st.DataObject, prompt: int) -> None:
        request = data.draw(st.sampled_from(self.of(Stage.WAITING)))
        self.scheduler.counted(self.now, request, prompt)
        estimator = self.scheduler.pools[request.pool].estimator
        read_s = min(estimator.prefill_s(prompt), estimator.prefill_s(prompt, PROBABLE))  # mostly it took less, or more
        if request.found_slot and not request.ready:  # no estimate takes out what none could keep out
            read_s = estimator.announced_prefill_s(prompt)
        assert request.expires_at <= request.due_at - read_s + 1e-9 or not self.policies.admission

    @precondition(lambda self: self.stages)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.stages)))
        waits = self.stages[request] is Stage.WAITING
        assert self.scheduler.leave(self.now, request) == waits
        if waits:
            self.moves(request, Stage.ENDED)
            self.ends(request, "left")

    @rule()
    def expire(self) -> None:
        due = {each for each in self.of(Stage.WAITING) if each.expires_at <= self.now}
        expired = self.scheduler.expire(self.now)
        assert set(expired) == due
        assert [each.expires_at for each in expired] == sorted(each.expires_at for each in expired)
        for request in expired:
            self.moves(request, Stage.ENDED)
            self.ends(request, "evicted")
            if request.expires_for == "patience":
                assert self.now - max(request.queued_at, request.ready_at) >= request.start_by - request.queued_at
            if request.expires_for == "first_token":
                assert request.first_token_by < inf
        assert self.scheduler.wakes_at() > self.now

    # ---- the slots

    def free(self, pool: str) -> int:
        return self.slots[pool] - len(self.of(Stage.RUNNING, pool))

    @rule(memory=st.sampled_from([inf, inf, 30, 100]))
    def use_memory(self, memory: float) -> None:
        self.memory = memory

    def fits(self, request: Request) -> bool:
        return request.prompt_tokens <= self.memory

    @rule(pool=st.sampled_from(POOLS))
    def serve(self, pool: str) -> None:
        started = True
        while self.free(pool) > 0 and started:
            started = self.next(pool)
        if self.memory == inf and self.free(pool) > 0:
            assert not [each for each in self.of(Stage.WAITING, pool) if each.ready], "a slot idles while work waits"

    @rule(pool=st.sampled_from(POOLS))
    def serve_one(self, pool: str) -> None:
        if self.free(pool) > 0:
            self.next(pool)

    def next(self, pool: str) -> bool:
        could = [each for each in self.of(Stage.WAITING, pool) if each.ready and self.fits(each)]
        request, evicted = self.scheduler.next(self.now, pool, None if self.memory == inf else self.fits)
        for each in evicted:
            assert each.ready
            assert self.fits(each)
            assert each.expires_for in ("deadline", "first_token")
            self.moves(each, Stage.ENDED)
            self.ends(each, "evicted")
        if not self.policies.fairness:
            gone = {*evicted, request} - {None}
            assert gone == set(sorted(could, key=lambda each: each.sequence)[: len(gone)]), (
                "not in the order of arrival"
            )
        if request is None:
            return False
        assert request.pool == pool
        self.starts(request)
        return True

    def starts(self, request: Request) -> None:
        assert request.ready
        assert self.fits(request)
        assert self.now <= request.due_at or not self.policies.admission
        assert 1 <= request.granted_tokens <= request.max_tokens
        assert request.started_at == self.now
        self.moves(request, Stage.RUNNING)

    @precondition(lambda self: self.of(Stage.RUNNING))
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.CLIENT_GONE, Outcome.UPSTREAM_FAILED]))
    def stop(self, data: st.DataObject, outcome: Outcome) -> None:
        request = data.draw(st.sampled_from(self.of(Stage.RUNNING)))
        self.finish(request, outcome, self.written(request))

    @precondition(lambda self: self.fates)
    @rule(data=st.data())
    def finish_twice(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.fates)))
        with pytest.raises(RuntimeError):
            self.scheduler.finish(self.now, request, Outcome.SERVED, 1, 1)

    @rule(step_s=st.sampled_from([0.001, 0.02, 0.1, 0.5, 2.0, 20.0, 400.0]))
    def let_time_pass(self, step_s: float) -> None:
        """Answers end when they are complete, and at their deadline at the latest."""
        until = self.now + step_s
        while due := [each for each in self.of(Stage.RUNNING) if self.ends_at(each) <= until]:
            request = min(due, key=self.ends_at)
            self.now = max(self.now, self.ends_at(request))
            tokens = self.written(request)
            complete = tokens >= min(self.answers[request], request.granted_tokens)
            self.finish(request, Outcome.SERVED if complete else Outcome.DEADLINE_EXCEEDED, tokens)
        self.now = until

    def read_s(self, request: Request) -> float:
        return (request.prompt_tokens + request.context_tokens) * PREFILL_S

    def ends_at(self, request: Request) -> float:
        tokens = min(self.answers[request], request.granted_tokens)
        return min(
            max(request.deadline, request.started_at), request.started_at + self.read_s(request) + tokens * TOKEN_S
        )

    def written(self, request: Request) -> int:
        tokens = (self.now - request.started_at - self.read_s(request)) / TOKEN_S
        return min(max(0, round(tokens)), self.answers[request], request.granted_tokens)

    def finish(self, request: Request, outcome: Outcome, tokens: int) -> None:
        if tokens:
            first_at, now = request.started_at + self.read_s(request), self.now
            self.scheduler.first_token(min(first_at, now), request)
        prompt = request.prompt_tokens + request.context_tokens
        self.scheduler.finish(self.now, request, outcome, prompt, tokens)
        self.moves(request, Stage.ENDED)
        self.ends(request, "finished")
        self.ended[request.pool] += 1
        cost = self.settings.weights.cost(prompt, tokens)
        assert request.charge_tokens == pytest.approx(cost)
        if request.tenant in self.specs:
            self.spent[request.tenant] = self.spent.get(request.tenant, 0.0) + cost

    @rule(pool=st.sampled_from(POOLS), slots=st.sampled_from([0, 1, 2, 2, 3, 4]), fail=st.booleans())
    def resize(self, pool: str, slots: int, fail: bool = False) -> None:
        """Slots come and go; those that ran on lost ones fail, or run on."""
        estimator = self.scheduler.pools[pool].estimator if pool in self.scheduler.pools else None
        before = estimator.rate if estimator else None
        had = self.slots[pool]
        self.slots[pool] = slots
        self.scheduler.capacity(self.now, slots, pool)
        after = self.scheduler.pools[pool].estimator.rate
        if slots == 0:
            assert after is None
        elif before is not None:
            assert after == pytest.approx(before * slots / had), "lost slots do not show at once"
        while fail and self.free(pool) < 0:
            request = self.of(Stage.RUNNING, pool)[0]
            self.finish(request, Outcome.UPSTREAM_FAILED, self.written(request))

    @precondition(lambda self: len(self.stages) > 20)
    @rule()
    def drain(self) -> None:
        """Let all end. Nothing is left in any book."""
        self.memory = inf
        for pool in POOLS:
            self.resize(pool, 2)
        for request in self.of(Stage.WAITING):
            self.scheduler.ready(self.now, request)
        while self.of(Stage.WAITING) or self.of(Stage.RUNNING):
            self.expire()
            for pool in POOLS:
                self.serve(pool)
            self.let_time_pass(0.5)
        assert set(self.fates) == set(self.stages)
        self.books_agree()
        self.switch(True, True, True)
        self.strangers_leave_nothing()


TestWeir = Executor.TestCase
TestWeir.settings = settings(max_examples=60, stateful_step_count=20)
