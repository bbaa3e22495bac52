"""The whole mechanism as one object: what the router drives with sockets, and the simulator with a virtual clock.

    offer   at the door, in one step: which level, will it make it, is there room; a place in line or a reason
    next    a slot is free: whose turn is it, does it still fit, how long may its answer be
    finish  it ended, however: the slot is free, the charge is settled, the estimates learn

Nothing here waits, reads a clock or draws a random number: times come in as `now`, chance as `random`. Every method
decides and returns; whoever calls wakes, sends, cancels and refuses.

What is refused has cost nobody anything, and is told why, how long it would have waited, and when to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil, floor, inf, log10

from services.core.account import ClassSpec, TenantSpec
from services.core.admission import first_token_s, grant
from services.core.choices import WeirSettings
from services.core.door import TURN_S, Admitted, Refused, Visit, expiry, probable_tokens
from services.core.drr import Drr
from services.core.estimator import Estimator
from services.core.ladder import Sizes
from services.core.learned import OfClass, OfPool
from services.core.outcome import Outcome
from services.core.policies import Policies
from services.core.pool import ClassNode, Flow
from services.core.request import RUNNING, WAITING, Request

FIRST_QUANTUM_TOKENS = 1000.0
"""Until costs have been seen."""
QUANTUM_EVERY = 64
"""Answers between two looks at the quantum."""
SLACK_EVERY = 8
"""Of the slacks at the door, one in so many is looked at by the ladder."""


class Weir:
    """Admission, fairness, degradation and honest refusals, for all pools of one router."""

    __slots__ = ("_held", "_offers", "_random", "_since", "_sizes", "drr", "learned", "second_finishes", "settings")

    def __init__(self, settings: WeirSettings, random: Callable[[], float]) -> None:
        self.settings = settings
        self.drr = Drr(
            quantum=settings.quantum_tokens or FIRST_QUANTUM_TOKENS,
            bounds=settings.bounds,
            classes=settings.classes,
            idle_tenants=settings.idle_tenants,
        )
        self.learned: dict[str, OfPool] = {}
        self._sizes = Sizes(settings.ladder)
        self._held: dict[str, int] = {}
        self._random = random
        self._offers = 0
        self.second_finishes = 0
        self.switch(-inf, settings.policies)

    # ---- the house

    def configure(self, spec: TenantSpec) -> None:
        """Make a tenant that is kept, or change one from here on: `Drr.configure` says what holds when."""
        self.drr.configure(spec)

    def dismiss(self, now: float, id: str) -> bool:
        """A tenant is configured no longer: what waits and runs goes on, and it is forgotten as an idle stranger is."""
        known = self.drr.dismiss(now, replace(self.settings.stranger, id=id))
        self.drr.forget_idle(now)
        return known

    def reload(self, now: float, classes: tuple[ClassSpec, ...], specs: Iterable[TenantSpec]) -> None:
        """All classes and tenants, from here on: new ones, changed ones, and nobody else. Or ValueError, and no change.

        A tenant that is named no more becomes a stranger. A level that was held stays so while its class does.
        """
        settings, wanted = replace(self.settings, classes=classes), {spec.id: spec for spec in specs}
        names = {spec.name for spec in classes}
        if lost := [spec.id for spec in wanted.values() if spec.class_name not in names]:
            raise ValueError(f"there is no class for {', '.join(lost)}")
        self.drr.reclass(now, classes)
        self.settings = settings
        self._held = {name: level for name, level in self._held.items() if name in names}
        for of_pool in self.learned.values():
            for node in of_pool.pool.nodes.values():
                self._of_class(of_pool, node).weight = node.weight
        for spec in wanted.values():
            self.configure(spec)
        for id in [id for id, tenant in self.drr.tenants.items() if tenant.configured and id not in wanted]:
            self.dismiss(now, id)

    def switch(self, now: float, policies: Policies) -> None:
        """These mechanisms are on from here on, for those in line as well. Nobody loses a place by it.

        Whoever came in unjudged is judged when admission comes back, and may be the next to expire. Only waits that
        begin under admission teach from then on: the others say nothing about what it promises.
        """
        self.settings = replace(self.settings, policies=policies)
        self.drr.own_bounds = policies.own_bounds
        self.drr.take_turns(now, policies.fairness)
        self._since = now if policies.admission else inf
        for request in self.drr.waiting():
            self._set_expiry(request)

    def hold_level(self, class_name: str | None, level: int | None) -> None:
        """An operator's word: the class (None: every class) begins at this level, whatever its load; None: automatic.

        It takes the place of the controller, which goes on looking, and of nothing else: no request is cut deeper than
        its tenant allows, and one that would be refused is still tried at the levels below.
        """
        names = [spec.name for spec in self.drr.classes] if class_name is None else [class_name]
        if level is not None and not 0 <= level < len(self.settings.ladder):
            raise ValueError(f"levels are 0 to {len(self.settings.ladder) - 1}, got {level}")
        for name in names:
            if all(name != spec.name for spec in self.drr.classes):
                raise ValueError(f"there is no class {name}")
            self._held.pop(name, None)
            if level is not None:
                self._held[name] = level

    def held(self, class_name: str) -> int | None:
        """The level that an operator holds the class at; None: it is automatic."""
        return self._held.get(class_name)

    def level(self, of_class: OfClass, name: str) -> int:
        """Where requests of this class begin on the ladder: held there, or by its load; nowhere without admission."""
        if not self.settings.policies.admission:
            return 0
        return self._held.get(name, of_class.controller.level)

    def announce(self, pool: str, estimator: Estimator) -> None:
        """Begin with what the pool's workers say of themselves, before anything runs. `capacity` tells their slots."""
        of_pool = self._of_pool(pool)
        estimator.take_over(of_pool.estimator)
        of_pool.estimator = estimator

    def capacity(self, now: float, slots: int, pool: str = "default") -> None:
        """So many slots live from now on, over all workers of the pool."""
        self._of_pool(pool).estimator.resize(now, slots)

    # ---- the door

    def offer(self, now: float, request: Request) -> Admitted | Refused:
        """Decide about a newcomer, in one step: if it is admitted, it has its place."""
        settings = self.settings
        of_pool, flow = self._meet(now, request)
        of_pool.pool.let_go(now)
        if not settings.clamp:
            request.may_clamp = False
        if request.max_level:
            request.max_level = min(request.max_level, len(settings.ladder) - 1) if settings.degrade else 0
        visit = Visit(now, request, settings, self._sizes, of_pool, flow)
        visit.plan(0)
        if settings.degrade and settings.policies.admission and (level := self._level(now, request, of_pool, visit)):
            visit.plan(level)
        why = visit.refusal()
        if why is None:
            visit.admit()
            full = self.drr.enqueue(now, request, flow)
            if full is None:
                return Admitted(visit.level, visit.view.wait_s)
            outcome = Outcome.TENANT_QUEUE_FULL if full.of_tenant else Outcome.YIELD
            return visit.refuse(outcome, full.value, self._random, never=self.drr.never_holds(request))
        return visit.refuse(*why, self._random)

    def _meet(self, now: float, request: Request) -> tuple[OfPool, Flow]:
        tenant = self.drr.tenants.get(request.tenant)
        if tenant is None:
            tenant = self.drr.meet(now, replace(self.settings.stranger, id=request.tenant))
            self.drr.forget_idle(now)
        of_pool = self.learned.get(request.pool) or self._of_pool(request.pool)
        flow = tenant.flows.get(request.pool)
        if flow is None or request.class_name:
            flow = self.drr.flow(of_pool.pool, tenant, request.class_name)
            if not hasattr(flow, "learned"):
                of_pool.meet(flow)
        return of_pool, flow

    def forecast(self, request: Request) -> list[float]:
        """The wait of one just admitted, in seconds at each of the `PUBLISHED` quantiles."""
        return request.flow.learned.waits.of(request.predicted_as_new).waits_s(request.predicted_wait_s)

    # ---- the line

    def counted(self, now: float, request: Request, prompt_tokens: int) -> None:
        """Its prompt is known, whatever was added to it: the charge that was estimated for it is put right.

        While it waits, so is when it could start at the latest. What was promised of its wait stays as it was.
        """
        request.prompt_tokens, request.context_tokens = prompt_tokens, 0
        if request.stage not in (WAITING, RUNNING):
            return
        (prompt, answer), lengths = self._planned(request), request.flow.learned.lengths
        self.drr.reprice(now, request, self.settings.weights.cost(prompt, lengths.expected(answer)))
        if request.stage is WAITING:
            if self.settings.reading_line:
                self.learned[request.pool].pool.will_read(request, prompt)
            self._set_expiry(request)

    def _set_expiry(self, request: Request) -> None:
        (prompt, answer), lengths = self._planned(request), request.flow.learned.lengths
        estimator = self.learned[request.pool].estimator
        expires_at, request.expires_for = expiry(request, prompt, answer, lengths, estimator, self.settings)
        self.drr.postpone(request, expires_at)

    def ready(self, now: float, request: Request) -> None:
        """Its retrieval is done: it could start from now on, and from now on its client's patience is tried."""
        if not request.ready:
            self._of_pool(request.pool).retrieval_s.add(now - request.queued_at)
            request.ready_at = now
            if request.start_by < inf and request.stage is WAITING:
                ends_at = now + request.start_by - request.queued_at + TURN_S
                if ends_at < request.expires_at:
                    request.expires_for = "patience"
                    self.drr.postpone(request, ends_at)
        self.drr.make_ready(now, request)

    def leave(self, now: float, request: Request) -> bool:
        """Its client left. False when it does not wait any more."""
        return self.drr.discard(now, request)

    def hint_s(self, now: float, request: Request) -> float:
        """When to come back, for one that had a place in line and lost it: by its tenant's own line."""
        of_pool, flow = self.learned[request.pool], request.flow
        rate = (of_pool.estimator.rate or 0.0) * of_pool.pool.share(flow)
        return flow.learned.appointments.hint(now, flow.work, request.charge_tokens, rate, self._random)

    def expire(self, now: float) -> list[Request]:
        """Take out those that can no longer be in time, and those whose client has no more patience.

        `expires_for` says which. How long they waited teaches as well.
        """
        expired = self.drr.expire(now)
        for request in expired:
            self._learn_wait(now, request)
        return expired

    def wakes_at(self) -> float:
        """When `expire` next has something to do; infinity when nothing waits."""
        return self.drr.wakes_at()

    # ---- the slots

    def next(
        self, now: float, pool: str = "default", fits: Callable[[Request], bool] | None = None
    ) -> tuple[Request | None, list[Request]]:
        """A slot of the pool is free: who starts in it, and who turned out to fit no more (evicted)."""
        evicted: list[Request] = []
        while request := self.drr.next(now, pool, fits):
            of_pool = self.learned[pool]
            self._learn_wait(now, request)
            prompt, answer = self._planned(request)
            request.granted_tokens = self._grant(now, request, of_pool, prompt, answer)
            if request.granted_tokens:
                self._start(now, request, of_pool, prompt)
                return request, evicted
            self.drr.settle(now, request, 0.0)
            evicted.append(request)
        return None, evicted

    def _planned(self, request: Request) -> tuple[int, int]:
        """(prompt, longest answer) in tokens, at the level that it was admitted at."""
        level = request.level
        if not level:
            return request.prompt_tokens + request.context_tokens, request.max_tokens
        context = self._sizes.contexts(request.context_tokens)[level]
        return request.prompt_tokens + context, self._sizes.answers(request.max_tokens)[level]

    def _grant(self, now: float, request: Request, of_pool: OfPool, prompt: int, answer: int) -> int:
        request.expires_for = "deadline"
        if not self.settings.policies.admission:
            return answer
        if request.first_token_by < inf and (
            now + first_token_s(request, prompt, of_pool.estimator) > request.first_token_by
        ):
            request.expires_for = "first_token"
            return 0
        probable = 0.0
        if not (request.may_clamp or request.on_trust):
            probable = probable_tokens(request.flow.learned.lengths, answer, request.length_quantile)
        tokens = grant(request, prompt, answer, probable, request.deadline - now, of_pool.estimator)
        return tokens if tokens >= min(answer, self.settings.least_answer_tokens) else 0

    def _start(self, now: float, request: Request, of_pool: OfPool, prompt: int) -> None:
        estimator, flow = of_pool.estimator, request.flow
        of_tenant = flow.learned
        answer = of_tenant.lengths.expected(request.granted_tokens)
        estimator.start(now, request, estimator.before_s() + estimator.service_s(prompt, answer))
        estimator.begin_reading(request, prompt if self.settings.reading_line else 0)
        rate = estimator.rate
        if rate:
            backlog_s = flow.work / (of_pool.pool.share(flow) * rate)
            target_s = of_tenant.service_s * max(1.0, 4.0 / max(1, estimator.slots))
            slack_s = (request.due_at - request.queued_at) * self.settings.safety_margin
            of_tenant.standing.sample(now, backlog_s, target_s, slack_s)

    def first_token(self, now: float, request: Request) -> None:
        """Its prompt has been read."""
        request.first_token_at = now
        prompt, _ = self._planned(request)
        estimator = self.learned[request.pool].estimator
        estimator.end_reading(request)
        estimator.learn_prefill(now - request.started_at, prompt, request.read_before_tokens)

    def finish(
        self, now: float, request: Request, outcome: Outcome, prompt_tokens: float, completion_tokens: float
    ) -> None:
        """A request that had started ended: served, failed or cancelled, having read and written so many tokens.

        A second end changes nothing and is counted; `strict` makes it an error, which it is.
        """
        if request.stage is not RUNNING:
            self.second_finishes += 1
            if self.settings.strict:
                raise RuntimeError(f"{request!r} was finished, and does not run")
            return
        of_pool = self.learned[request.pool]
        estimator, of_tenant = of_pool.estimator, request.flow.learned
        cost = self.settings.weights.cost(prompt_tokens, completion_tokens)
        estimator.stop(now)
        estimator.end_reading(request)
        estimator.learn(now, request, cost)
        of_tenant.got.add(now, cost)
        self.drr.settle(now, request, cost if self.settings.true_up else request.charge_tokens)
        if completion_tokens > 1 and request.first_token_at:
            estimator.learn_pace(now - request.first_token_at, completion_tokens - 1)
        served = outcome is Outcome.SERVED
        if served:
            of_tenant.served(now - request.started_at)
            of_pool.costs.add(cost)
        if served or completion_tokens:
            of_tenant.lengths.observe(completion_tokens, cut=not served or completion_tokens >= request.granted_tokens)
        if served and self.settings.quantum_tokens is None and of_pool.costs.count % QUANTUM_EVERY == 0:
            of_pool.pool.set_quantum(_rounded_up(of_pool.costs.quantile(0.9) or FIRST_QUANTUM_TOKENS))

    # ---- learning

    def _learn_wait(self, now: float, request: Request) -> None:
        """A wait has shown itself, unless it was for the request's own retrieval: its turn had come before."""
        if not request.ready or now <= request.ready_at or request.queued_at < self._since:
            return
        of_tenant, wait_s = request.flow.learned, now - request.queued_at
        of_tenant.waits.of(request.predicted_as_new).learn(request.predicted_wait_s, wait_s)
        of_tenant.of_class.recent_s.add(wait_s)

    def _level(self, now: float, request: Request, of_pool: OfPool, visit: Visit) -> int:
        """Where to begin on the ladder: where its class stands, as far as its tenant allows."""
        of_class = visit.of_tenant.of_class
        if request.max_level:
            of_class.offered_at(visit.prices())
        else:
            of_class.offered(visit.cost_tokens)
        self._offers += 1
        if self._offers % SLACK_EVERY == 0:
            of_class.slacks_s.add(request.due_at - now)
        controller = of_class.controller
        if controller.due(now):
            self._look(now, of_pool)
        level = self.level(of_class, visit.flow.node.name) if self._held else controller.level
        return min(level, request.max_level) if level else 0

    def _look(self, now: float, of_pool: OfPool) -> None:
        """Each class looks at its load, highest weight first: it has what those above it leave, or its own share."""
        rate = of_pool.estimator.rate
        weights = sum(of_class.weight for of_class in of_pool.classes.values())
        left = rate or 0.0
        for of_class in sorted(of_pool.classes.values(), key=lambda of_class: -of_class.weight):
            offered = of_class.offered_per_s(now)
            level = of_class.controller.observe(
                now,
                q95_wait_s=of_class.recent_s.quantile(0.95),
                median_slack_s=of_class.slacks_s.quantile(0.5),
                offered_work_per_s=offered,
                rate=max(left, (rate or 0.0) * of_class.weight / weights),
            )
            left -= offered[level]

    def _of_pool(self, name: str) -> OfPool:
        of_pool = self.learned.get(name)
        if of_pool is None:
            of_pool = self.learned[name] = OfPool(self.drr.pool(name), {})
            for node in of_pool.pool.nodes.values():
                self._of_class(of_pool, node)
        return of_pool

    def _of_class(self, of_pool: OfPool, node: ClassNode) -> OfClass:
        known = of_pool.classes.get(node.name)
        if known is None:
            known = of_pool.classes[node.name] = OfClass(node.weight, self.settings.ladder)
        return known

    def __repr__(self) -> str:
        return f"<Weir {self.drr!r}, {[of_pool.estimator for of_pool in self.learned.values()]}>"


def _rounded_up(tokens: float) -> float:
    """To two digits: a quantum that is a little above the usual cost leaves no debt, and seldom changes."""
    step = 10.0 ** (floor(log10(tokens)) - 1)
    return ceil(tokens / step - 1e-9) * step
