"""Can it still make it? The test at the door, and again at the start.

A request is admitted if what it will wait and what it will take fit into a share of its slack:

    max(wait, q95(retrieval)) + own service <= margin * (deadline - now)

The two terms are kept apart because they fail apart: the wait depends on the others and is predicted well by the law
of large numbers, the service on one unknown length. One multiplied margin over both would be too brave for the one
and too timid for the other.

**The wait under Deficit Round Robin.** A tenant does not wait for all who came before: it waits for its own line at
its own share, and for one round of the others.

    wait = min( all work ahead,
                (own work ahead + own debt) / share + one round of the others ) / R + time to the next free slot

`own work ahead` counts what is due earlier only. `one round of the others` is the sum over them of min(quantum, work);
without it the estimate is blind when many small tenants cause the overload. It is still blind to those who are not
here yet: with hundreds of equal tenants one in eight of the admitted was overtaken by newcomers until it had to be
dropped. So rounds are also *measured*, and in each what newcomers took (`ring.py`); the wait is the longer of the two.
That is an estimate of the share that will be lost, and leaves a quarter of those drops (decision 018 has the figures).

A tenant whose line is empty and who owes nothing goes on the new list, and waits for those on it alone. While a slot
is free nobody waits, and nobody is refused on a guess: only what could not make it in an empty house is turned away.
Free for a newcomer is what those whose retrieval still runs will leave: they take no slot yet, and all will want one.
The next free slot is the first that is expected to end, not a mean: long requests fall into step.

**The service.** Prefill, then the answer's length times the time per token. The length is a guess.

**The first token.** A stream promises its first token before its end. That is a second test of the same form, with
the time to read the prompt in the place of the service, and it fails apart: a client that watches a stream does not
mind how long it goes on.

    max(wait, q95(retrieval)) + prefill <= margin * (first token due - now)

**Patience.** A client may say how long it would stand in line. It is believed: a longer expected wait is a refusal
now, not an expiry later. One that would not wait at all needs an empty house, which is not a guess. The time that its
own retrieval takes is not spent in line: the slot that was free for it may be taken by then, and if so it yields.

**Caution is for those who have their share.** A tenant that asks for more than its share counts with the q95 of its
wait (`calibration.py`) and with a high quantile of its lengths, the q90 once it gets all of its share: what it loses by
caution, it would have lost anyway. While it gets less, the quantile is lower, down to the median: refused on caution,
it would have no line for the scheduler to be fair to. One that asks for less than its share counts with the mean and
the median, and its standing queue is not looked at: it must not be refused because its neighbours are unpredictable.

Where an answer may be cut to fit, the median serves for all: the clamp bounds the rest. A tenant of whom fewer than 20
answers are known is not refused on a guess at all: only its prefill counts. Judged by the lengths of others it might be
refused for ever, and nobody would learn that they were wrong.

Relatives: Clockwork (OSDI '20) and Nexus (SOSP '19) test feasibility with known service times; Mooncake (FAST '25)
refuses before prefill; QLM (2024) estimates waits from queued tokens. None of them knows the share that DRR gives.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from services.core.estimator import PROBABLE, Estimator
from services.core.ladder import fit_clamp
from services.core.pool import Flow, Pool
from services.core.request import Request

CAUTIOUS = 0.99
"""The quantile of prefill and time per token that the clamp counts with: whoever is cut must be in time."""


class Outlook(NamedTuple):
    """What a newcomer has before it: its share of the pool, and the wait to expect (not q95)."""

    share: float
    wait_s: float
    idle: bool
    new: bool


EMPTY_HOUSE = Outlook(share=1.0, wait_s=0.0, idle=True, new=True)


def outlook(
    now: float, pool: Pool, flow: Flow, due_at: float, estimator: Estimator, *, measured_rounds: bool = True
) -> Outlook:
    """The expected wait of a newcomer that is due then, and what it is made of. O(1) in the common case."""
    if pool.arrivals is not None:
        return outlook_in_line(now, pool, estimator)
    if pool.requests < estimator.slots - estimator.busy and not pool.classes.backlog:
        return EMPTY_HOUSE
    node, rate = flow.node, estimator.rate
    of_class = pool.class_share(node)
    share = flow.weight / (node.active_weight + (0.0 if flow.active else flow.weight)) * of_class
    if not rate:
        return Outlook(share, 0.0, False, False)
    ring, all_work = node.flows, pool.work
    line, standing = flow.work_before(due_at) if flow.requests else 0.0, ring.standing(now, flow)
    new = line == 0.0 and ring.would_be_new(flow, standing)
    if new:  # before it are the others that are new
        ahead = min(all_work, pool.turn_work(flow, standing, line) / of_class)
    else:
        own = line - standing if standing < 0.0 else line
        ahead = own / share + pool.round_work - flow.round_part
        if ahead > all_work:
            ahead = all_work
        if measured_rounds:
            until_turn = pool.turn_work(flow, standing, line) / of_class
            if until_turn > ahead:
                ahead = until_turn
    if ahead < 0.0:  # sums of floats drift
        ahead = 0.0
    wait_s = ahead / rate + estimator.residual_s(now)
    assert 0.0 <= wait_s < inf, f"a wait of {wait_s} s: {ahead} tokens before {flow!r} at {rate} a second"
    return Outlook(share, wait_s, False, new)


def outlook_in_line(now: float, pool: Pool, estimator: Estimator) -> Outlook:
    """The same where all tenants stand in one line: a newcomer waits for all who came before."""
    if pool.requests < estimator.slots - estimator.busy and not pool.classes.backlog:
        return EMPTY_HOUSE
    rate = estimator.rate
    return Outlook(1.0, max(0.0, pool.work) / rate + estimator.residual_s(now) if rate else 0.0, False, False)


def grant(
    request: Request,
    prompt_tokens: int,
    answer_tokens: int,
    probable_tokens: float,
    slack_s: float,
    estimator: Estimator,
) -> int:
    """The test at the start: how long its answer may be; 0 if none would be in time. (`first_token_s` is the other.)

    Without the margin, since no wait is left to be wrong about. One that may be cut is given what fits; one that may
    not must fit at its probable length, unless it was let in without a guess. One that was is not turned away on
    caution either: a house that starts nobody learns nothing.
    """
    if request.may_clamp:
        prefill_s = estimator.prefill_s(prompt_tokens, CAUTIOUS)
        tokens = fit_clamp(answer_tokens, slack_s, prefill_s, estimator.token_s(CAUTIOUS))
        if not tokens and request.on_trust:
            tokens = fit_clamp(answer_tokens, slack_s, estimator.prefill_s(prompt_tokens), estimator.token_s(0.5))
        return tokens
    if request.on_trust:
        needs_s = estimator.service_s(prompt_tokens, 0.0)
    else:
        needs_s = estimator.probable_s(prompt_tokens, probable_tokens)
    return answer_tokens if needs_s <= slack_s else 0


def first_token_s(request: Request, prompt_tokens: int, estimator: Estimator) -> float:
    """How long after its start its first token comes: in 85 cases of 100; on average if it was let in without a guess.

    Both tests after the door use it: one that starts later than that before its first token is due starts for nobody.
    """
    return estimator.prefill_s(prompt_tokens, None if request.on_trust else PROBABLE)
