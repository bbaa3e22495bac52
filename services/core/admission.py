"""Can it still make it? The test at the door, and again at the start.

A request is admitted if what it will wait and what it will take fit into a share of its slack:

    max(q95(wait), q95(retrieval)) + own service <= margin * (deadline - now)

The two terms are kept apart because they fail apart: the wait depends on the others and is predicted well by the law
of large numbers, the service on one unknown length. One multiplied margin over both would be too brave for the one
and too timid for the other.

**The wait under Deficit Round Robin.** A tenant does not wait for all who came before: it waits for its own line at
its own share, and for one round of the others.

    wait = min( all work ahead,
                (own work ahead + own debt) / share + one round of the others ) / R + time to the next free slot

`own work ahead` counts earlier deadlines only. `one round of the others` is the sum over them of min(quantum, work);
without it the estimate is blind when many small tenants cause the overload. A tenant whose line is empty and who owes
nothing goes on the new list, and waits for those on it alone. While a slot is free nobody waits, and nobody is
refused on a guess: only what could not make it in an empty house is turned away.

**The service.** Prefill, then the answer's length times the time per token. The length is a guess: at q90 for a tenant
that asks for more than its share, at the median for one that does not, since a light tenant must not pay for caution.
Where the answer may be cut to fit (`fit_clamp`), the median serves for all: the clamp bounds the rest. A tenant of whom
fewer than 20 answers are known is not refused on a guess at all: only its prefill counts, and waits and bounds as for
everyone. Judged by the lengths of others it might be refused for ever, and nobody would learn that they were wrong.

Relatives: Clockwork (OSDI '20) and Nexus (SOSP '19) test feasibility with known service times; Mooncake (FAST '25)
refuses before prefill; QLM (2024) estimates waits from queued tokens. None of them knows the share that DRR gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from services.core.cost import Lengths, Weights
from services.core.estimator import Estimator
from services.core.ladder import Level, fit_clamp
from services.core.outcome import Outcome
from services.core.pool import Flow, Pool
from services.core.request import Request
from services.core.ring import Turn

CAUTIOUS_PACE = 0.99
"""The quantile of prefill and time per token that the clamp counts with: whoever is cut must be in time."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """It has a place in line, at this level of degradation."""

    level: int
    predicted_wait_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """It has none. `retry_hint_s` is None where coming back as it is cannot help."""

    outcome: Outcome
    reason: str
    scope: str
    predicted_wait_s: float
    retry_hint_s: float | None


class Outlook(NamedTuple):
    """What a newcomer has before it: its flow's own work, its share of the pool, and the wait to expect (not q95)."""

    own_work: float
    share: float
    wait_s: float
    idle: bool


class Plan(NamedTuple):
    """What a request comes to at one level: its sizes, its estimated cost, and how long it would run."""

    level: int
    prompt_tokens: int
    answer_tokens: int
    cost_tokens: float
    service_s: float


def outlook(now: float, pool: Pool, flow: Flow, deadline: float, estimator: Estimator) -> Outlook:
    """The expected wait of a newcomer with this deadline, and what it is made of. O(1) in the common case."""
    if estimator.busy < estimator.slots and not pool.classes.backlog:
        return Outlook(0.0, 1.0, 0.0, True)
    share = pool.share(flow)
    line = flow.work_before(deadline)
    own = line + pool.debt(now, flow)
    rate = estimator.rate
    if not rate:
        return Outlook(own, share, 0.0, False)
    if own == 0.0 and flow.turn is Turn.OUT:  # it would be new: before it are the others that are
        ahead = pool.round_work * min(1.0, flow.node.flows.newcomers / max(1, pool.active_flows))
        return Outlook(own, share, min(pool.work, ahead) / rate + estimator.residual_s(now), False)
    ahead = min(pool.work, own / share + pool.round_work - flow.round_part)
    ahead = max(ahead, pool.turn_work(now, flow, line))
    return Outlook(own, share, ahead / rate + estimator.residual_s(now), False)


def plan(
    request: Request, level: int, rung: Level, lengths: Lengths, estimator: Estimator, weights: Weights, q: float
) -> Plan:
    """The request at a level; `q` is the quantile of its length that its service time counts with, 0: none of it."""
    prompt, answer = sizes(request, level, rung)
    cost = prompt * weights.prompt + lengths.expected(answer) * weights.completion
    return Plan(level, prompt, answer, cost, service_s(estimator, prompt, lengths.at(q, answer) if q else 0.0))


def sizes(request: Request, level: int, rung: Level) -> tuple[int, int]:
    """(prompt, longest answer) in tokens at this level."""
    if level == 0:
        return request.prompt_tokens + request.context_tokens, request.max_tokens
    return request.prompt_tokens + rung.context_tokens(request.context_tokens), rung.answer_tokens(request.max_tokens)


def service_s(estimator: Estimator, prompt_tokens: float, answer_tokens: float) -> float:
    """How long it would hold a slot, if its answer has this length."""
    return estimator.prefill_s(prompt_tokens) + answer_tokens * estimator.token_s(0.5)


def grant(
    request: Request, prompt_tokens: int, answer_tokens: int, median_tokens: float, slack_s: float, estimator: Estimator
) -> int:
    """The test at the start: how long its answer may be; 0 if none would be in time.

    Without the margin, since no wait is left to be wrong about. One that may be cut is given what fits; one that may
    not must fit at its median length.
    """
    if request.may_clamp:
        prefill_s = estimator.prefill_s(prompt_tokens, CAUTIOUS_PACE)
        return fit_clamp(answer_tokens, slack_s, prefill_s, estimator.token_s(CAUTIOUS_PACE))
    return answer_tokens if service_s(estimator, prompt_tokens, median_tokens) <= slack_s else 0
