"""Admission, order, degradation and rejections as one object; the router drives it with sockets, the simulator with a
virtual clock.

    admit   a new request, in one step: its level, the feasibility test, the bounds; a rejection, a place in the queue,
            or its start, if nothing is queued and a slot is free for it
    next    a slot is free: which request starts, whether it still fits, and the limit of its answer
    finish  a running request ended: the slot is free, the charge is settled, the estimates learn
    expire  remove requests whose time has come from the queue

Two policies are objects behind an interface, and `switch` exchanges them while requests are queued and run:

    AdmissionPolicy   `DeadlineAdmission` or `BoundedAdmission` (`admission.py`): which requests are admitted and start
    QueueDiscipline   `DrrDiscipline` or `FifoDiscipline` (`discipline.py`): in which order they start

Nothing here waits, reads a clock or draws a random number: the arguments are `now` and `random`. Every method decides
and returns; the caller wakes, sends, cancels and answers. See docs/architecture/mechanisms/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil, floor, inf, log10

from services.core.account import ClassSpec, TenantSpec
from services.core.admission import TURN_S, AdmissionPolicy, BoundedAdmission, DeadlineAdmission
from services.core.admissioncheck import AdmissionCheck, Admitted, Rejection
from services.core.choices import SchedulerSettings
from services.core.cost import Weights
from services.core.degradation import Degradation
from services.core.discipline import DrrDiscipline, FifoDiscipline
from services.core.drr import Drr
from services.core.estimator import Estimator
from services.core.ladder import LadderSizes
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.core.pool import ClassNode, Flow, PoolQueue
from services.core.request import RUNNING, WAITING, Request
from services.core.sharedpool import SharedDrrDiscipline, SharedPoolQueue
from services.core.stats import ClassStats, PoolStats, TenantStats

FIRST_QUANTUM_TOKENS = 1000.0
"""The quantum before any cost is known."""
QUANTUM_EVERY = 64
"""Served answers between two updates of the quantum."""


class Scheduler:
    """One object for all pools of a router."""

    __slots__ = (
        "_admission",
        "_deepest",
        "_degradation",
        "_learns_from",
        "_random",
        "_sizes",
        "drr",
        "pools",
        "second_finishes",
        "settings",
        "usage",
    )

    def __init__(self, settings: SchedulerSettings, random: Callable[[], float]) -> None:
        self.settings = settings
        """The present settings. Only `switch`, `weigh` and `reload` replace it."""
        self.drr = Drr(
            quantum=settings.quantum_tokens or FIRST_QUANTUM_TOKENS,
            bounds=settings.bounds,
            classes=settings.classes,
            idle_tenants=settings.idle_tenants,
            new_stats=self._new_stats,
            pool_type=SharedPoolQueue if settings.several_routers else PoolQueue,
        )
        self.usage = self.drr.usage
        """What is queued over all tenants and pools, and its bounds."""
        self.pools: dict[str, PoolStats] = {}
        self.second_finishes = 0
        self._deepest = len(settings.ladder) - 1 if settings.degrade else 0
        self._sizes = LadderSizes(settings.ladder)
        self._degradation = Degradation(len(settings.ladder))
        self._random = random
        self._admission: AdmissionPolicy
        self.switch(-inf, settings.policies)

    # ---- settings

    def configure(self, spec: TenantSpec) -> None:
        """Make a configured tenant, or change one: see `Drr.configure`. Raises ValueError for an unknown class."""
        self.drr.configure(spec)

    def dismiss(self, now: float, id: str) -> bool:
        """End a tenant's configuration. Its requests go on; once idle it is forgotten. False if it is unknown."""
        known = self.drr.dismiss(now, replace(self.settings.unconfigured, id=id))
        self.drr.forget_idle(now)
        return known

    def reload(self, now: float, classes: tuple[ClassSpec, ...], specs: Iterable[TenantSpec]) -> None:
        """Replace all classes and configured tenants.

        Tenants that are no longer listed become unconfigured. A held level stays while its class exists. Raises
        ValueError, and changes nothing, for a tenant of an unknown class.
        """
        settings, wanted = replace(self.settings, classes=classes), {spec.id: spec for spec in specs}
        names = {spec.name for spec in classes}
        if lost := [spec.id for spec in wanted.values() if spec.class_name not in names]:
            raise ValueError(f"there is no class for {', '.join(lost)}")
        self.drr.reclass(now, classes)
        self.settings = settings
        self._degradation.keep(names)
        for pool_stats in self.pools.values():
            for node in pool_stats.pool.nodes.values():
                self._class_stats(pool_stats, node).weight = node.weight
        for spec in wanted.values():
            self.configure(spec)
        for id in [id for id, tenant in self.drr.tenants.items() if tenant.configured and id not in wanted]:
            self.dismiss(now, id)

    @property
    def policies(self) -> Policies:
        """Which mechanisms are on."""
        return self.settings.policies

    def switch(self, now: float, policies: Policies) -> None:
        """Set the mechanisms, for queued requests too. None of them loses its place.

        When admission is switched on, requests that came in without a test get an expiry, which may be in the past.
        """
        self.settings = replace(self.settings, policies=policies)
        self._admission = (DeadlineAdmission if policies.admission else BoundedAdmission)(self._degradation)
        self._learns_from = self._admission.learns_from(now)
        self.drr.own_bounds = policies.own_bounds
        fair = SharedDrrDiscipline if self.settings.several_routers else DrrDiscipline
        self.drr.serve_by(now, fair if policies.fairness else FifoDiscipline)
        for request in self.drr.waiting():
            self._set_expiry(request)

    def weigh(self, weights: Weights) -> None:
        """Set the costs of a prompt token and a completion token, before the first request."""
        self.settings = replace(self.settings, weights=weights)

    def hold_level(self, class_name: str | None, level: int | None) -> None:
        """Hold the class (None: every class) at this level; None: by its load. Raises ValueError if one is unknown."""
        known = [spec.name for spec in self.drr.classes]
        if class_name is not None and class_name not in known:
            raise ValueError(f"there is no class {class_name}")
        self._degradation.hold(known if class_name is None else [class_name], level)

    def held(self, class_name: str) -> int | None:
        return self._degradation.held(class_name)

    def level(self, class_stats: ClassStats, name: str) -> int:
        """The degradation level at which requests of this class begin."""
        return self._admission.level(class_stats, name)

    def announce(self, pool: str, estimator: Estimator) -> None:
        """Set a pool's estimator, made from what its workers announce. `capacity` sets the slots."""
        pool_stats = self._pool_stats(pool)
        estimator.inherit(pool_stats.estimator)
        pool_stats.estimator = estimator

    def estimator(self, pool: str) -> Estimator | None:
        """The estimator of the pool; None before its first announcement or request."""
        pool_stats = self.pools.get(pool)
        return None if pool_stats is None else pool_stats.estimator

    def capacity(self, now: float, slots: int, pool: str = "default") -> None:
        """Set the number of live slots over all workers of the pool. Raises ValueError if it is negative."""
        self._pool_stats(pool).estimator.resize(now, slots)

    # ---- admission

    def admit(
        self, now: float, request: Request, fits: Callable[[Request], bool] | None = None
    ) -> Admitted | Rejection:
        """Decide about a new request, in one step. If it is admitted, it is queued, or it runs.

        It runs if `next` with this `fits` would start it now and nothing else is queued in its pool. Without `fits` it
        is queued in any case.
        """
        settings = self.settings
        pool_stats, flow = self._get_or_create(now, request)
        pool_stats.pool.release_idle(now)
        if not settings.clamp:
            request.may_clamp = False
        if request.max_level > self._deepest:
            request.max_level = self._deepest
        admission = self._admission
        check = AdmissionCheck(now, request, settings, self._sizes, admission, pool_stats, flow)
        check.plan(0)
        if level := admission.start_level(check):
            check.plan(level)
        why = check.refusal()
        if why is not None:
            return check.refuse(*why, self._random)
        check.charge()
        limit = self.drr.limit(flow.tenant, request)
        if limit is not None:
            outcome = Outcome.TENANT_QUEUE_FULL if limit.of_tenant else Outcome.YIELD
            return check.refuse(outcome, limit.value, self._random, never=self.drr.never_fits(request))
        check.admit()
        if fits is None or not self._start_at_once(now, check, fits):
            check.expire()
            self.drr.insert(now, request, flow)
        return Admitted(check.level, check.prediction.wait_s)

    def _start_at_once(self, now: float, check: AdmissionCheck, fits: Callable[[Request], bool]) -> bool:
        """Start it without queueing it, as `next` would. If False, it is to be queued and `next` to be called."""
        request, flow, pool_stats = check.request, check.flow, check.pool_stats
        if pool_stats.pool.requests or not request.ready or not fits(request):
            return False
        lengths, estimator = flow.stats.lengths, pool_stats.estimator
        granted = self._admission.grant(
            now, request, check.prompt_tokens, check.answer_tokens, lengths, estimator, self.settings
        )
        if not granted or not self.drr.start_at_once(now, request, flow):
            return False
        request.granted_tokens = granted
        self._learn_wait(now, request)
        self._start(now, request, pool_stats, check.prompt_tokens)
        return True

    def _get_or_create(self, now: float, request: Request) -> tuple[PoolStats, Flow]:
        tenant = self.drr.tenants.get(request.tenant)
        if tenant is None:
            tenant = self.drr.create_unconfigured(now, replace(self.settings.unconfigured, id=request.tenant))
            self.drr.forget_idle(now)
        pool_stats = self.pools.get(request.pool) or self._pool_stats(request.pool)
        flow = tenant.flows.get(request.pool)
        if flow is None or request.class_name:
            flow = self.drr.flow(pool_stats.pool, tenant, request.class_name)
        return pool_stats, flow

    def likely_tokens(self, tenant_id: str, pool: str) -> int:
        """The longest likely answer to an open-ended request of this tenant: its `max_tokens`."""
        tenant = self.drr.tenants.get(tenant_id)
        flow = tenant.flows.get(pool) if tenant is not None else None
        return (self._pool_stats(pool) if flow is None else flow.stats).lengths.likely()

    def forecast(self, request: Request) -> list[float]:
        """The wait of a request just admitted, in seconds at each of the `PUBLISHED` quantiles."""
        return request.flow.stats.waits.of(request.predicted_as_new).waits_s(request.predicted_wait_s)

    # ---- the queue

    def counted(self, now: float, request: Request, prompt_tokens: int) -> None:
        """Set the counted prompt, with all that was added to it, and correct the charge.

        For a queued request the expiry is updated too. The predicted wait stays as it was.
        """
        request.prompt_tokens, request.context_tokens = prompt_tokens, 0
        if request.stage not in (WAITING, RUNNING):
            return
        (prompt, answer), lengths = self._planned(request), request.flow.stats.lengths
        self.drr.reprice(now, request, self.settings.weights.cost(prompt, lengths.expected(answer)))
        if request.stage is WAITING:
            if self.settings.unread_prompts_delay:
                self.pools[request.pool].pool.will_read(request, prompt)
            self._set_expiry(request)

    def _set_expiry(self, request: Request) -> None:
        (prompt, answer), lengths = self._planned(request), request.flow.stats.lengths
        estimator = self.pools[request.pool].estimator
        expires_at, request.expires_for = self._admission.expiry(
            request, prompt, answer, lengths, estimator, self.settings
        )
        self.drr.postpone(request, expires_at)

    def ready(self, now: float, request: Request) -> None:
        """Its retrieval is done: it can start, and its client's limit on the wait counts from now on."""
        if not request.ready:
            self._pool_stats(request.pool).retrieval_s.add(now - request.queued_at)
            request.ready_at = now
            if request.start_by < inf and request.stage is WAITING:
                ends_at = now + request.start_by - request.queued_at + TURN_S
                if ends_at < request.expires_at:
                    request.expires_for = "patience"
                    self.drr.postpone(request, ends_at)
        self.drr.make_ready(now, request)
        if request.found_slot and request.stage is WAITING:
            self._set_expiry(request)  # it waits as any other from now on, unless it starts at once

    def leave(self, now: float, request: Request) -> bool:
        """Remove the request of a client that disconnected. False if it is not queued any more."""
        return self.drr.discard(now, request)

    def hint_s(self, now: float, request: Request) -> float:
        """The retry hint in seconds for a request that was evicted, by its tenant's own queue."""
        pool_stats, flow = self.pools[request.pool], request.flow
        rate = (pool_stats.estimator.rate or 0.0) * pool_stats.pool.share(flow)
        return flow.stats.reservations.hint(now, flow.work, request.charge_tokens, rate, self._random)

    def expire(self, now: float) -> list[Request]:
        """Remove and return requests that can no longer be in time, or have reached their client's limit on the wait.

        `expires_for` is the reason. Their waits are samples too.
        """
        expired = self.drr.expire(now)
        for request in expired:
            self._learn_wait(now, request)
        return expired

    def wakes_at(self) -> float:
        return self.drr.wakes_at()

    # ---- the slots

    def next(
        self, now: float, pool: str = "default", fits: Callable[[Request], bool] | None = None
    ) -> tuple[Request | None, list[Request]]:
        """A slot of the pool is free: the request that starts in it, and those that no longer fit (evicted)."""
        evicted: list[Request] = []
        while request := self.drr.next(now, pool, fits):
            pool_stats = self.pools[pool]
            self._learn_wait(now, request)
            if now > request.queued_at and now > request.ready_at:
                request.found_slot = False
            prompt, answer = self._planned(request)
            lengths, estimator = request.flow.stats.lengths, pool_stats.estimator
            request.granted_tokens = self._admission.grant(
                now, request, prompt, answer, lengths, estimator, self.settings
            )
            if request.granted_tokens:
                self._start(now, request, pool_stats, prompt)
                return request, evicted
            self.drr.settle(now, request, 0.0)
            evicted.append(request)
        return None, evicted

    def _planned(self, request: Request) -> tuple[int, int]:
        """(prompt, limit of the answer) in tokens, at the level that it was admitted at."""
        level = request.level
        if not level:
            return request.prompt_tokens + request.context_tokens, request.max_tokens
        context = self._sizes.contexts(request.context_tokens)[level]
        return request.prompt_tokens + context, self._sizes.answers(request.max_tokens)[level]

    def _start(self, now: float, request: Request, pool_stats: PoolStats, prompt: int) -> None:
        estimator, flow = pool_stats.estimator, request.flow
        tenant_stats = flow.stats
        granted, asked = request.granted_tokens, request.max_tokens  # `planned_tokens`, without a frame for each start
        answer = tenant_stats.lengths.expected(granted if granted < asked else asked)
        estimator.start(now, request, estimator.prefill_backlog_s() + estimator.service_s(prompt, answer))
        estimator.begin_prefill(request, prompt if self.settings.unread_prompts_delay else 0)
        rate = estimator.rate
        if rate:
            backlog_s = 0.0
            if flow.requests:
                work = flow.work + flow.elsewhere * request.charge_tokens  # see codel.py
                backlog_s = work / (pool_stats.pool.share(flow) * rate)
            slots = estimator.slots
            if flow.elsewhere and pool_stats.pool.elsewhere is not None:  # its queue is one of several
                slots = max(slots, pool_stats.pool.elsewhere.slots)
            target_s = tenant_stats.service_s * max(1.0, 4.0 / (slots or 1))
            slack_s = (request.due_at - request.queued_at) * self.settings.safety_margin
            tenant_stats.codel.sample(now, backlog_s, target_s, slack_s, request.max_level)

    def first_token(self, now: float, request: Request) -> None:
        """Record that the prompt has been prefilled, with a sample of the time."""
        request.first_token_at = now
        prompt, _ = self._planned(request)
        estimator = self.pools[request.pool].estimator
        estimator.end_prefill(request)
        estimator.learn_prefill(max(0.0, now - request.slot_at), prompt, request.read_before_tokens)

    def finish(
        self, now: float, request: Request, outcome: Outcome, prompt_tokens: float, completion_tokens: float
    ) -> None:
        """End a running request: served, failed or cancelled, with the tokens that were used.

        A second call changes nothing and is counted; with `strict` it raises RuntimeError.
        """
        if request.stage is not RUNNING:
            self.second_finishes += 1
            if self.settings.strict:
                raise RuntimeError(f"{request!r} was finished, and does not run")
            return
        pool_stats, settings = self.pools[request.pool], self.settings
        estimator, tenant_stats = pool_stats.estimator, request.flow.stats
        cost = settings.weights.cost(prompt_tokens, completion_tokens)
        estimator.stop(now)
        if request.read_tokens:
            estimator.end_prefill(request)
        estimator.learn(now, request, cost, prompt_tokens, completion_tokens)
        tenant_stats.got.add(now, cost)
        self.drr.settle(now, request, cost if settings.true_up else request.charge_tokens)
        if completion_tokens > 1 and request.first_token_at:
            estimator.learn_pace(now - request.first_token_at, completion_tokens - 1)
        if outcome is Outcome.SERVED:
            costs = pool_stats.costs
            tenant_stats.served(max(0.0, now - request.slot_at))
            costs.add(cost)
            estimator.learn_end(now, request)
            tenant_stats.lengths.observe(completion_tokens, cut=completion_tokens >= request.granted_tokens)
            if costs.count % QUANTUM_EVERY == 0 and settings.quantum_tokens is None:
                pool_stats.pool.set_quantum(_rounded_up(costs.quantile(0.9) or FIRST_QUANTUM_TOKENS))
        elif completion_tokens:
            tenant_stats.lengths.observe(completion_tokens, cut=True)

    # ---- learning

    def _learn_wait(self, now: float, request: Request) -> None:
        """Add a sample of a wait, unless the request waited for its own retrieval only."""
        if not request.ready or now <= request.ready_at or request.queued_at < self._learns_from:
            return
        tenant_stats, wait_s = request.flow.stats, now - request.queued_at
        tenant_stats.waits.of(request.predicted_as_new).learn(request.predicted_wait_s, wait_s)
        tenant_stats.class_stats.recent_s.add(wait_s)

    def _pool_stats(self, name: str) -> PoolStats:
        pool_stats = self.pools.get(name)
        if pool_stats is None:
            pool_stats = self.pools[name] = PoolStats(self.drr.pool(name), {})
            for node in pool_stats.pool.nodes.values():
                self._class_stats(pool_stats, node)
        return pool_stats

    def _class_stats(self, pool_stats: PoolStats, node: ClassNode) -> ClassStats:
        known = pool_stats.classes.get(node.name)
        if known is None:
            known = pool_stats.classes[node.name] = ClassStats(node.weight, self._sizes)
        return known

    def _new_stats(self, flow: Flow, pool: str) -> TenantStats:
        return self._pool_stats(pool).stats_of(flow)

    def __repr__(self) -> str:
        return f"<Scheduler {self.drr!r}, {[pool_stats.estimator for pool_stats in self.pools.values()]}>"


def _rounded_up(tokens: float) -> float:
    """Rounded up to two digits, so that the quantum seldom changes and exceeds the usual cost, which leaves no debt."""
    step = 10.0 ** (floor(log10(tokens)) - 1)
    return ceil(tokens / step - 1e-9) * step
