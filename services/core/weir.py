"""The whole mechanism as one object: what the router drives with sockets, and the simulator with a virtual clock.

    offer   at the door, in one step: which level, will it make it, is there room; a place in line or a reason
    next    a slot is free: whose turn is it, does it still fit, how long may its answer be
    finish  it ended, however: the slot is free, the charge is settled, the estimates learn

Nothing here waits, reads a clock or draws a random number: times come in as `now`, chance as `random`. Every method
decides and returns; whoever calls wakes, sends, cancels and refuses.

What is refused has cost nobody anything, and is told why, how long it would have waited, and when to come back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from services.core.account import Bounds, ClassSpec, TenantSpec
from services.core.admission import Admitted, Outlook, Plan, Refused, grant, outlook, plan, service_s, sizes
from services.core.calibration import PUBLISHED
from services.core.cost import Lengths, Weights
from services.core.drr import Drr
from services.core.estimator import Estimator
from services.core.ladder import LADDER, Level
from services.core.learned import OfClass, OfPool, OfTenant
from services.core.outcome import Outcome
from services.core.pool import Flow
from services.core.request import Request

FIRST_QUANTUM_TOKENS = 1000.0
"""Until costs have been seen."""
QUANTUM_EVERY = 64
"""Ends between two looks at the quantum."""
SLACK_EVERY = 8
"""Of the slacks at the door, one in so many is looked at by the ladder."""


@dataclass(frozen=True, slots=True)
class WeirSettings:
    """What may be chosen. Each mechanism can be switched off, to see what it is worth."""

    bounds: Bounds = field(default_factory=lambda: Bounds(256))
    stranger: TenantSpec = field(default_factory=lambda: TenantSpec("", Bounds(64)))
    """Of tenants that nobody configured; the id is their own."""
    classes: tuple[ClassSpec, ...] = field(default_factory=lambda: (ClassSpec("default"),))
    idle_tenants: int = 1000
    quantum_tokens: float | None = None
    """None: the q90 of what requests cost."""
    safety_margin: float = 0.8
    weights: Weights = field(default_factory=Weights)
    ladder: tuple[Level, ...] = LADDER
    least_answer_tokens: int = 1
    """An answer that may be cut is not worth starting below this."""
    degrade: bool = True
    clamp: bool = True
    standing_queue: bool = True
    feasibility: bool = True
    calibrate: bool = True
    true_up: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.safety_margin <= 1:
            raise ValueError(f"safety_margin must be above 0 and at most 1, got {self.safety_margin}")
        if self.quantum_tokens is not None and not self.quantum_tokens > 0:
            raise ValueError(f"quantum_tokens must be above 0, got {self.quantum_tokens}")


class Weir:
    """Admission, fairness, degradation and honest refusals, for all pools of one router."""

    __slots__ = ("_ends", "_offers", "_random", "drr", "learned", "settings")

    def __init__(self, settings: WeirSettings, random: Callable[[], float]) -> None:
        self.settings = settings
        self.drr = Drr(
            quantum=settings.quantum_tokens or FIRST_QUANTUM_TOKENS,
            bounds=settings.bounds,
            classes=settings.classes,
            idle_tenants=settings.idle_tenants,
        )
        self.learned: dict[str, OfPool] = {}
        self._random = random
        self._offers = 0
        self._ends = 0

    # ---- the house

    def configure(self, spec: TenantSpec) -> None:
        """Make a tenant that is kept, or change one."""
        self.drr.configure(spec)

    def announce(self, pool: str, estimator: Estimator) -> None:
        """Begin with what the pool's workers say of themselves. Its slots are told by `capacity`."""
        of_pool = self._of_pool(pool)
        estimator.slots, estimator.busy = of_pool.estimator.slots, of_pool.estimator.busy
        of_pool.estimator = estimator

    def capacity(self, now: float, slots: int, pool: str = "default") -> None:
        """So many slots live from now on, over all workers of the pool."""
        self._of_pool(pool).estimator.resize(now, slots)

    # ---- the door

    def offer(self, now: float, request: Request) -> Admitted | Refused:
        """Decide about a newcomer, in one step: if it is admitted, it has its place."""
        of_pool, flow = self._meet(now, request)
        of_tenant, of_class = of_pool.tenant(flow), of_pool.classes[flow.node.name]
        of_pool.pool.let_go(now)
        if not request.may_clamp or not self.settings.clamp:
            request.may_clamp = False
        view = outlook(now, of_pool.pool, flow, request.deadline, of_pool.estimator)
        first = self._level(now, request, of_pool, of_class, of_tenant.lengths)
        plan = self._plan(request, first, of_pool, of_tenant, flow, view)
        if not of_pool.estimator.slots:
            return self._refuse(now, Outcome.NO_CAPACITY, "no_worker", of_pool, of_tenant, flow, view, plan)
        if self.settings.standing_queue and flow.requests and view.wait_s > of_tenant.standing.limit_s:
            return self._refuse(now, Outcome.YIELD, "standing_queue", of_pool, of_tenant, flow, view, plan)
        while not self._makes_it(now, request, plan, view, of_pool, of_tenant):
            if plan.level >= request.max_level or not self.settings.degrade:
                return self._refuse(now, Outcome.DEADLINE_INFEASIBLE, "deadline", of_pool, of_tenant, flow, view, plan)
            plan = self._plan(request, plan.level + 1, of_pool, of_tenant, flow, view)
        return self._enqueue(now, request, plan, view, of_pool, of_tenant, flow)

    def _meet(self, now: float, request: Request) -> tuple[OfPool, Flow]:
        tenant = self.drr.tenants.get(request.tenant)
        if tenant is None:
            tenant = self.drr.meet(now, replace(self.settings.stranger, id=request.tenant))
            for id in self.drr.forget_idle(now):
                for of_pool in self.learned.values():
                    of_pool.tenants.pop(id, None)
        of_pool = self._of_pool(request.pool)
        return of_pool, self.drr.flow(of_pool.pool, tenant)

    def _plan(
        self, request: Request, level: int, of_pool: OfPool, of_tenant: OfTenant, flow: Flow, view: Outlook
    ) -> Plan:
        rung, settings = self.settings.ladder[level], self.settings
        if not of_tenant.lengths.confident:
            q = 0.0
        elif request.may_clamp or view.own_work <= self.drr.quantum * flow.weight:
            q = 0.5
        else:
            q = 0.9
        return plan(request, level, rung, of_tenant.lengths, of_pool.estimator, settings.weights, q)

    def _makes_it(
        self, now: float, request: Request, plan: Plan, view: Outlook, of_pool: OfPool, of_tenant: OfTenant
    ) -> bool:
        """The feasibility test. In an empty house nobody is refused on a guess, only on what is certain."""
        slack_s = request.deadline - now
        if view.idle:
            return of_pool.estimator.prefill_s(plan.prompt_tokens) < slack_s
        if not self.settings.feasibility:
            return True
        wait_s = view.wait_s
        if self.settings.calibrate:
            wait_s = of_tenant.calibration.cautious_s(wait_s, of_tenant.service_s)
        if not request.ready:
            wait_s = max(wait_s, of_pool.retrieval_s.quantile(0.95) or 0.0)
        return wait_s + plan.service_s <= self.settings.safety_margin * slack_s

    def _enqueue(
        self, now: float, request: Request, plan: Plan, view: Outlook, of_pool: OfPool, of_tenant: OfTenant, flow: Flow
    ) -> Admitted | Refused:
        request.level = plan.level
        request.charge_tokens = plan.cost_tokens
        request.predicted_wait_s = view.wait_s
        request.expires_at = self._latest_start(request, plan, of_pool.estimator, of_tenant.lengths)
        full = self.drr.enqueue(now, request)
        if full is None:
            return Admitted(plan.level, view.wait_s)
        outcome = Outcome.TENANT_QUEUE_FULL if full.of_tenant else Outcome.YIELD
        return self._refuse(now, outcome, full.value, of_pool, of_tenant, flow, view, plan)

    def _latest_start(self, request: Request, plan: Plan, estimator: Estimator, lengths: Lengths) -> float:
        """When to give up on it. Its slack may be negative by then; clamped to 0, the dead would be the most urgent."""
        if request.may_clamp:
            answer: float = min(plan.answer_tokens, self.settings.least_answer_tokens)
        else:
            answer = _median(lengths, plan.answer_tokens)
        return request.deadline - estimator.prefill_s(plan.prompt_tokens) - answer * estimator.token_s(0.5)

    def _refuse(
        self,
        now: float,
        outcome: Outcome,
        reason: str,
        of_pool: OfPool,
        of_tenant: OfTenant,
        flow: Flow,
        view: Outlook,
        plan: Plan,
    ) -> Refused:
        rate = of_pool.estimator.rate or 0.0
        if flow.requests and outcome is not Outcome.NO_CAPACITY:
            book, scope, queued, rate = of_tenant.appointments, "tenant", flow.work, rate * view.share
        else:
            book, scope, queued = of_pool.appointments, "platform", of_pool.pool.work
        hint_s = book.hint(now, queued, plan.cost_tokens, rate, self._random)
        return Refused(outcome, reason, scope, view.wait_s, hint_s)

    def forecast(self, request: Request) -> list[float]:
        """The wait of one just admitted, in seconds at each of the `PUBLISHED` quantiles."""
        calibration = self.learned[request.pool].tenants[request.tenant].calibration
        return [calibration.wait_s(request.predicted_wait_s, q) for q in PUBLISHED]

    # ---- the line

    def ready(self, now: float, request: Request) -> None:
        """Its retrieval is done: it could start from now on."""
        if not request.ready:
            self._of_pool(request.pool).retrieval_s.add(now - request.queued_at)
        self.drr.make_ready(now, request)

    def leave(self, now: float, request: Request) -> bool:
        """Its client left. False when it does not wait any more."""
        return self.drr.discard(now, request)

    def expire(self, now: float) -> list[Request]:
        """Take out those that can no longer be in time. How long they waited teaches as well."""
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
            request.granted_tokens = self._grant(now, request, of_pool)
            if request.granted_tokens:
                self._start(now, request, of_pool)
                return request, evicted
            self.drr.settle(now, request, 0.0)
            evicted.append(request)
        return None, evicted

    def _grant(self, now: float, request: Request, of_pool: OfPool) -> int:
        prompt, answer = sizes(request, request.level, self.settings.ladder[request.level])
        median = _median(of_pool.tenants[request.tenant].lengths, answer)
        tokens = grant(request, prompt, answer, median, request.deadline - now, of_pool.estimator)
        return tokens if tokens >= min(answer, self.settings.least_answer_tokens) else 0

    def _start(self, now: float, request: Request, of_pool: OfPool) -> None:
        estimator, flow = of_pool.estimator, self.drr.tenants[request.tenant].flows[request.pool]
        of_tenant = of_pool.tenants[request.tenant]
        prompt, _ = sizes(request, request.level, self.settings.ladder[request.level])
        answer = of_tenant.lengths.expected(request.granted_tokens)
        estimator.start(now, request, service_s(estimator, prompt, answer))
        rate = estimator.rate
        if rate:
            backlog_s = flow.work / (of_pool.pool.share(flow) * rate)
            target_s = of_tenant.service_s * max(1.0, 4.0 / max(1, estimator.slots))
            slack_s = (request.deadline - request.queued_at) * self.settings.safety_margin
            of_tenant.standing.sample(now, backlog_s, target_s, slack_s)

    def first_token(self, now: float, request: Request) -> None:
        """Its prompt has been read."""
        request.first_token_at = now
        prompt, _ = sizes(request, request.level, self.settings.ladder[request.level])
        self.learned[request.pool].estimator.learn_prefill(now - request.started_at, prompt)

    def finish(
        self, now: float, request: Request, outcome: Outcome, prompt_tokens: float, completion_tokens: float
    ) -> None:
        """A request that had started ended: served, failed or cancelled, having read and written so many tokens."""
        of_pool = self.learned[request.pool]
        estimator, of_tenant = of_pool.estimator, of_pool.tenants[request.tenant]
        cost = self.settings.weights.cost(prompt_tokens, completion_tokens)
        estimator.stop(now)
        estimator.learn(now, request, cost)
        self.drr.settle(now, request, cost if self.settings.true_up else request.charge_tokens)
        if completion_tokens > 1 and request.first_token_at:
            estimator.learn_pace(now - request.first_token_at, completion_tokens - 1)
        served = outcome is Outcome.SERVED
        if served:
            of_tenant.served(now - request.started_at)
            of_pool.costs.add(cost)
        if served or completion_tokens:
            of_tenant.lengths.observe(completion_tokens, cut=not served or completion_tokens >= request.granted_tokens)
        self._ends += 1
        if self._ends % QUANTUM_EVERY == 0 and self.settings.quantum_tokens is None:
            self.drr.set_quantum(of_pool.costs.quantile(0.9) or FIRST_QUANTUM_TOKENS)

    # ---- learning

    def _learn_wait(self, now: float, request: Request) -> None:
        of_pool = self.learned[request.pool]
        flow = self.drr.tenants[request.tenant].flows[request.pool]
        of_class, of_tenant = of_pool.classes[flow.node.name], of_pool.tenant(flow)
        of_tenant.calibration.learn(request.predicted_wait_s, now - request.queued_at)
        of_class.waits.add(now - request.queued_at)

    def _level(self, now: float, request: Request, of_pool: OfPool, of_class: OfClass, lengths: Lengths) -> int:
        """Where to begin on the ladder: where its class stands, as far as its tenant allows."""
        if not self.settings.degrade:
            return 0
        self._offers += 1
        if self._offers % SLACK_EVERY == 0:
            of_class.slacks.add(request.deadline - now)
        of_class.offered(self._prices(request, lengths))
        if of_class.controller.due(now):
            self._look(now, of_pool)
        return min(of_class.controller.level, request.max_level)

    def _prices(self, request: Request, lengths: Lengths) -> list[float]:
        """What it would cost at each level; at those that its tenant does not allow, the same as at the deepest."""
        ladder, weights = self.settings.ladder, self.settings.weights
        prices: list[float] = []
        for level in range(min(request.max_level, len(ladder) - 1) + 1):
            prompt, answer = sizes(request, level, ladder[level])
            prices.append(weights.cost(prompt, lengths.expected(answer)))
        return prices + prices[-1:] * (len(ladder) - len(prices))

    def _look(self, now: float, of_pool: OfPool) -> None:
        """Each class looks at its load, highest weight first: it has what those above it leave, or its own share."""
        rate = of_pool.estimator.rate
        weights = sum(of_class.weight for of_class in of_pool.classes.values())
        left = rate or 0.0
        for of_class in sorted(of_pool.classes.values(), key=lambda of_class: -of_class.weight):
            offered = of_class.offered_per_s(now)
            level = of_class.controller.observe(
                now,
                q95_wait_s=of_class.waits.quantile(0.95),
                median_slack_s=of_class.slacks.quantile(0.5),
                offered_work_per_s=offered,
                rate=max(left, (rate or 0.0) * of_class.weight / weights),
            )
            left -= offered[level]

    def _of_pool(self, name: str) -> OfPool:
        of_pool = self.learned.get(name)
        if of_pool is None:
            pool = self.drr.pool(name)
            levels = len(self.settings.ladder)
            classes = {node.name: OfClass(node.weight, levels) for node in pool.nodes.values()}
            of_pool = self.learned[name] = OfPool(pool, classes)
        return of_pool

    def __repr__(self) -> str:
        return f"<Weir {self.drr!r}, {[of_pool.estimator for of_pool in self.learned.values()]}>"


def _median(lengths: Lengths, answer_tokens: int) -> float:
    """Half of the tenant's answers are at most so long. While few are known, a tenth of the model's: no pessimism."""
    return lengths.at(0.5 if lengths.confident else 0.1, answer_tokens)
