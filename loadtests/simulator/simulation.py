"""The event loop: one clock, one heap of events, and the life of each request.

An event is a time, a method and its argument. Events at the same time run in the order of scheduling, so a run repeats
exactly. Arrivals do not use the heap: the plan gives them in order, chunk by chunk.

Client and work are separate. The client's side of a job (`ended`) ends with an answer, a rejection or the end of its
patience; then the job is counted in one field of the ledger, or retried. The work (`state`) goes on until policy and
worker finish it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from loadtests.scenarios.model import Scenario
from loadtests.simulator.accounts import Account, LedgerError, Timeline, WorkTime, check
from loadtests.simulator.clients import Tenant, retry_at
from loadtests.simulator.fairness import WINDOW_S, Gaps, Jain
from loadtests.simulator.fleet import Fleet
from loadtests.simulator.job import OVER, RUNNING, WAITING, Job
from loadtests.simulator.plan import ArrivalPlan, ClosedLoop
from loadtests.simulator.policy import Policy
from loadtests.simulator.predictions import Predictions
from services.core.cost import Weights
from services.core.outcome import Outcome

MAX_WAKES_AT_ONCE = 1000
PAUSE_S = 0.01
"""The least pause of a client in a closed loop after a failure, because a real request takes time."""

Watch = Callable[[float], None]


class Simulation:
    """One policy, one plan, one set of workers. Call `run_until` any number of times, then `drain`."""

    def __init__(self, scenario: Scenario, plan: ArrivalPlan, policy: Policy, weights: Weights, *, seed: int) -> None:
        self.scenario = scenario
        self.plan = plan
        self.policy = policy
        self.now = 0.0
        self.answers = 0
        self.answered_cost = 0.0
        self._cost = weights.cost
        self._prompt_weight, self._completion_weight = weights.prompt, weights.completion
        self._offer = policy.offer
        self._from_s, self._until_s = scenario.warm_up_s, scenario.duration_s - scenario.cool_down_s
        self._heap: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._events = 0
        self._waiting = 0
        self._live = 0
        self._wake_at = math.inf
        self._wakes = 0
        self._outside = Account()
        self._chance = Random(f"{seed}/clients")
        self.work = WorkTime(self._from_s, self._until_s)
        self.timeline = Timeline(scenario.bucket_s)
        self.timeline.watch(tenant.name for tenant in plan.tenants[:16])
        self.gaps, self.jain = Gaps(plan.tenants), Jain(plan.tenants)
        self.predictions = Predictions(policy)
        self.watch: Watch | None = None
        """Called with the time at the end of each bucket."""
        self.ended: Callable[[float, Job, str], None] | None = None
        """Called at the end of each distinct request: time, last attempt, outcome."""
        self.fleet = Fleet(scenario.workers, self, seed, changed=self._fleet_changed, lost=self.lost)
        self._fleet_changed(0.0)
        self._plan_ahead()

    def _plan_ahead(self) -> None:
        self.schedule(self.timeline.bucket_s, self._close_bucket, None)
        self.schedule(self._from_s, self._jain, False)
        last = math.nextafter(self._until_s, 0.0)  # an event at the end of a run does not run
        for window in range(1, max(1, int((self._until_s - self._from_s) / WINDOW_S)) + 1):
            self.schedule(min(self._from_s + window * WINDOW_S, last), self._jain, True)
        for loop in self.plan.loops:
            for client in range(loop.clients):
                self._ask_at(0.0, loop, client)

    # ---- the clock

    def schedule(self, when: float, call: Callable[[float, Any], None], what: Any) -> None:
        self._events += 1
        heappush(self._heap, (when, self._events, call, what))

    def run_until(self, until: float) -> None:
        """Run all events before this time."""
        heap, arrive = self._heap, self._arrive
        while self.now < until:
            stop = min(until, self.now + self.plan.chunk_s)
            for job in self.plan.until(stop):
                at = job.arrived_at
                while heap and heap[0][0] <= at:
                    when, _, call, what = heappop(heap)
                    call(when, what)
                arrive(at, job)
            while heap and heap[0][0] < stop:
                when, _, call, what = heappop(heap)
                call(when, what)
            self.now = stop

    def drain(self) -> None:
        """Run without arrivals until every request has ended. Raises LedgerError unless each ended exactly once."""
        heap = self._heap
        while self._live and heap:
            self.now, _, call, what = heappop(heap)
            call(self.now, what)
        for worker in self.fleet.workers:
            for job in worker.fail(self.now):
                self.work.used(job, useful=False)  # its client has gone
        check({**self.plan.accounts, "outside the window": self._outside}, self._live)

    def _close_bucket(self, now: float, _: None) -> None:
        self.timeline.close_bucket(self._waiting, self.fleet.inflight)
        if now + self.timeline.bucket_s <= self.scenario.duration_s:
            self.schedule(now + self.timeline.bucket_s, self._close_bucket, None)
        if self.watch is not None:
            self.watch(now)

    def _jain(self, now: float, closes: bool) -> None:
        if closes:
            self.jain.close()
        else:
            self.jain.forget()

    # ---- clients

    def _arrive(self, now: float, job: Job) -> None:
        """An attempt arrives. This is the hot path: under overload most attempts are rejected here."""
        timeline = self.timeline
        timeline.offered += 1
        if not job.attempt:
            self._live += 1
            if now < self._from_s or now >= self._until_s:
                job.account = self._outside
            job.account.distinct += 1
            answer = job.wanted_tokens * self._completion_weight
            job.asker.asked_cost += (job.prompt_tokens + job.context_tokens) * self._prompt_weight + answer
        account = job.account
        account.attempts += 1
        refusal = self._offer(now, job)
        if job.obeys:
            account.came_back(job, admitted=refusal is None)
        if refusal is None:
            self._admitted(now, job)
            return
        timeline.refused += 1
        hint_s = refusal.retry_hint_s
        if hint_s is not None:
            account.hints += 1
        self._attempt_failed(now, job, account.rejected, refusal.outcome, hint_s)

    def _admitted(self, now: float, job: Job) -> None:
        job.wait()
        job.account.admitted += 1
        self._waiting += 1
        asker = job.asker
        asker.waiting += 1
        if asker.waiting == 1 and asker.watch >= 0:
            self.gaps.backlogged(asker.watch)
        if job.level > self.timeline.level:
            self.timeline.level = job.level
        leaves_at = min(job.leaves_at, job.deadline) if self.policy.cancels else job.leaves_at
        if leaves_at < math.inf:
            self.schedule(leaves_at, self._leave, job)
        self._dispatch(now)

    def _leave(self, now: float, job: Job) -> None:
        """The client's patience ends, or its deadline passes and the policy cancels."""
        if job.ended:
            return
        account, is_late = job.account, now >= job.deadline
        was_waiting = job.state == WAITING
        job.ended = True
        if was_waiting:
            account.dropped += is_late
            counts, why = (account.evicted, Outcome.DEADLINE_EXPIRED) if is_late else (account.gone, "waiting")
        else:
            account.missed += is_late
            counts, why = (account.failed, Outcome.DEADLINE_EXCEEDED) if is_late else (account.gone, "running")
        self._attempt_failed(now, job, counts, why)
        self._abandon(now, job, Outcome.DEADLINE_EXCEEDED if is_late else Outcome.CLIENT_GONE)

    def _abandon(self, now: float, job: Job, why: Outcome) -> None:
        """Take the job from the queue or stop it on its worker, if the policy cancels."""
        if job.state == WAITING:
            self.policy.leave(now, job)
            if self.policy.cancels:
                self.predictions.gave_up(now, job)
                self._unqueue(job)
                self._schedule_wake(now)
        elif self.policy.cancels and job.worker is not None:
            job.stopped = why
            if job.worker.half_trip_s:
                self.schedule(now + job.worker.half_trip_s, job.worker.stop, job)
            else:
                job.worker.stop(now, job)

    def _attempt_failed(
        self, now: float, job: Job, counts: dict[Any, int], why: str, hint_s: float | None = None
    ) -> None:
        """The attempt failed: the client retries, or the request ends."""
        job.ended = True
        if job.asker.retries.attempts:
            at = retry_at(now, job, hint_s, self._chance)
            if at is not None:
                obeys = hint_s is not None and job.asker.retries.wait == "hint" and not job.impatient
                self.schedule(at, self._ask_again, (job, obeys))
                return
        counts[why] = counts.get(why, 0) + 1
        self._over(now, job, why)

    def _over(self, now: float, job: Job, why: str) -> None:
        self._live -= 1
        if self.ended is not None:
            self.ended(now, job, why)
        if job.loop is not None and now < self.scenario.duration_s:
            pause_s = job.loop.think()
            if why != Outcome.SERVED:
                pause_s = max(pause_s, PAUSE_S)
            self._ask_at(now + pause_s, job.loop, job.client)

    def _ask_at(self, at: float, loop: ClosedLoop, client: int) -> None:
        """Schedule the client's next request at `at`, or at the next time it is active."""
        at = loop.next_active(client, at)
        if at < math.inf:
            self.schedule(at, self._ask, (loop, client))

    def _ask(self, now: float, what: tuple[ClosedLoop, int]) -> None:
        loop, client = what
        job = loop.draw(self.plan.number(), client, now)
        job.loop, job.client = loop, client
        self._arrive(now, job)

    def _ask_again(self, now: float, what: tuple[Job, bool]) -> None:
        job, obeys = what
        keeps = job.asker.retries.keeps_deadline
        self._arrive(now, job.again(self.plan.number(), now, keeps_deadline=keeps, obeys=obeys))

    # ---- the queue

    def _dispatch(self, now: float) -> None:
        policy_next, fleet = self.policy.next, self.fleet
        while self._waiting and fleet.free:
            job, dropped = policy_next(now)
            for other in dropped:
                self._evict(now, other)
            if job is None:
                break
            self._start(now, job)
        self._schedule_wake(now)

    def _schedule_wake(self, now: float) -> None:
        at = self.policy.wakes_at()
        if at < self._wake_at:
            self._wake_at = max(at, now)
            self.schedule(self._wake_at, self._wake, None)

    def _wake(self, now: float, _: None) -> None:
        if now < self._wake_at:
            return
        self._wake_at = math.inf
        for job in self.policy.expire(now):
            self._evict(now, job)
        self._wakes = self._wakes + 1 if self.policy.wakes_at() <= now else 0
        if self._wakes > MAX_WAKES_AT_ONCE:
            raise RuntimeError(f"{self.policy!r} wants to be woken at {now:g} for ever")
        self._dispatch(now)

    def _evict(self, now: float, job: Job) -> None:
        if job.state != WAITING:
            raise LedgerError(f"dropped from the queue, where it was not: {job!r}")
        self._unqueue(job)
        if job.ended:
            return
        self.predictions.gave_up(now, job)
        job.account.dropped += 1
        self._attempt_failed(now, job, job.account.evicted, Outcome.DEADLINE_EXPIRED)

    def _unqueue(self, job: Job) -> None:
        job.state = OVER
        self._waiting -= 1
        asker = job.asker
        asker.waiting -= 1
        if not asker.waiting and asker.watch >= 0:
            self.gaps.idle(asker.watch)

    # ---- workers

    def _start(self, now: float, job: Job) -> None:
        if job.state != WAITING:
            raise LedgerError(f"started, though it did not wait: {job!r}")
        self._unqueue(job)
        if not job.ended:
            self.predictions.started(now, job)
        job.state = RUNNING
        job.account.dispatches += 1
        shares = self.policy.context_shares
        context = int(job.context_tokens * shares[min(job.level, len(shares) - 1)]) if job.context_tokens else 0
        job.worker_prompt = job.prompt_tokens + context
        job.worker_tokens = max(1, min(job.natural_tokens, job.granted_tokens))
        self._send(now, job)

    def _send(self, now: float, job: Job) -> None:
        """Take a place on a worker, and send the job there."""
        worker = job.worker = self.fleet.take(job.worker_prompt + job.planned_tokens)
        if worker.half_trip_s:
            self.schedule(now + worker.half_trip_s, worker.give, job)
        else:
            worker.give(now, job)

    def began(self, now: float, job: Job) -> None:
        if not job.ended:
            job.account.wait_s.add(now - job.arrived_at)

    def first_token(self, now: float, job: Job) -> None:
        assert job.worker is not None
        if job.worker.half_trip_s:
            self.schedule(now + job.worker.half_trip_s, self._token_seen, job)
        else:
            self._token_seen(now, job)

    def _token_seen(self, now: float, job: Job) -> None:
        if job.state == RUNNING:
            self.policy.first_token(now, job)
            if not job.ended:
                job.account.first_token_s.add(now - job.arrived_at)

    def completed(self, now: float, job: Job) -> None:
        assert job.worker is not None
        if job.worker.half_trip_s:
            self.schedule(now + job.worker.half_trip_s, self._finish, job)
        else:
            self._finish(now, job)

    def lost(self, now: float, job: Job) -> None:
        job.stopped = job.stopped or Outcome.UPSTREAM_FAILED
        self._finish(now, job)

    def _finish(self, now: float, job: Job) -> None:
        """The job's place is free, as the router sees it."""
        worker = job.worker
        if job.state != RUNNING or worker is None:
            raise LedgerError(f"finished, though it did not run: {job!r}")
        job.state = OVER
        self.fleet.give_back(worker, job.worker_prompt + job.planned_tokens)
        outcome = job.stopped or Outcome.SERVED
        prompt_tokens = job.worker_prompt if job.used_s else 0
        self.policy.finish(now, job, outcome, prompt_tokens, job.tokens_done)
        cost = self._cost(prompt_tokens, job.tokens_done)
        self._served(job.asker, cost)
        is_useful = outcome is Outcome.SERVED and not job.ended and now <= job.deadline
        self.work.used(job, useful=is_useful)
        if not job.ended:
            self._answer_client(now, job, outcome, cost)
        self._dispatch(now)

    def _served(self, asker: Tenant, cost: float) -> None:
        asker.served_cost += cost
        if asker.watch >= 0:
            self.gaps.served(asker.watch, cost / asker.weight)
            self.timeline.serve(asker.name, cost)
        if cost > self.gaps.largest_cost:
            self.gaps.largest_cost = cost

    def _answer_client(self, now: float, job: Job, outcome: Outcome, cost: float) -> None:
        account = job.account
        if outcome is not Outcome.SERVED:
            account.missed += 1
            self._attempt_failed(now, job, account.failed, outcome)
            return
        job.ended = True
        self.answers += 1
        self.answered_cost += cost
        account.answered(now, job, cost)
        self.timeline.answer(now - job.arrived_at, on_time=now <= job.deadline)
        self._over(now, job, Outcome.SERVED)

    def _fleet_changed(self, now: float) -> None:
        self.work.slots(now, self.fleet.slots)
        self.policy.capacity(now, self.fleet.places)
        self._dispatch(now)
