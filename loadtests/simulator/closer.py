"""The figures of the table of promises, by name: each is read off a run that was watched closely.

A figure is given the arguments that the table names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from loadtests.scenarios.figures import FIGURES
from loadtests.simulator.oracle import best_work
from loadtests.simulator.readings import READ, Read, gap_s, members
from loadtests.simulator.watching import STEP_S, Cohorts, Seen, within

FOR_S = 5.0
"""Back means back for so long."""


class Closer(NamedTuple):
    """What a figure is called, with its arguments in braces; its unit; and how it is read."""

    words: str
    unit: str
    read: Callable[..., float | None]


def coverage_error(seen: Seen, quantile: float) -> float | None:
    told = seen.predictions.told()
    return abs(told.shares[quantile] - quantile) if told else None


def regret(seen: Seen) -> float | None:
    """What the oracle would have served more, as a share of what it would have served."""
    report = seen.report
    best = best_work(seen.ends.asked, report.capacity.cost_per_s)
    return (best - report.goodput_cost_per_s * report.window_s) / best if best else None


def gap_to_bound(seen: Seen) -> float | None:
    """Gap over Q + (Cmax + I_f) / w_f + (Cmax + I_g) / w_g."""
    fairness, inflight = seen.report.fairness, seen.inflight
    if fairness.gap_cost is None or not inflight.quantum:
        return None
    weights = {tenant.name: tenant.weight for tenant in seen.report.tenants}
    pair = fairness.gap_pair or ()
    shares = sum((fairness.largest_cost + inflight.most.get(name, 0.0)) / weights[name] for name in pair)
    return fairness.gap_cost / (inflight.quantum + shares)


def gap_to_vtc_bound(seen: Seen) -> float | None:
    """Gap over 2 * max(w_p * L_input, w_q * M), M being all slots' tokens with the longest answers allowed."""
    most_tokens = max(group.max_tokens for group in seen.scenario.tenants)
    prompt = seen.weights.cost(seen.ends.longest_prompt, 0)
    batch = seen.weights.cost(0, most_tokens * seen.report.capacity.slots)
    gap = seen.report.fairness.gap_cost
    return None if gap is None else gap / (2 * max(prompt, batch))


def group_on_time(seen: Seen, of: str) -> float | None:
    """Of what all tenants of a group asked for together."""
    group = next(each for each in seen.scenario.tenants if each.name == of)
    ledgers = [tenant.ledger for tenant in members(seen.report, group)]
    distinct = sum(ledger.distinct for ledger in ledgers)
    return sum(ledger.on_time for ledger in ledgers) / distinct if distinct else None


def group_p95_ms(seen: Seen, of: str) -> float | None:
    """Of the answers to all tenants of a group together."""
    latencies = sorted(seen.ends.latencies_s.get(of, ()))
    return 1000 * latencies[min(len(latencies) - 1, int(0.95 * len(latencies)))] if latencies else None


def back_after_s(cohorts: Cohorts, before: Sequence[float], from_s: float, share: float, span_s: float) -> float:
    """Seconds from `from_s` until spans of arrivals are on time as often as `share` of before, for FOR_S."""
    usual = cohorts.share_on_time(*before) or 0.0
    good_for, at = 0.0, from_s
    while at + span_s <= cohorts.until_s - 3.0 and good_for < FOR_S:
        now = cohorts.share_on_time(at, at + span_s)
        good_for = good_for + STEP_S if now is None or now >= share * usual else 0.0
        at += STEP_S
    return max(0.0, at - good_for - from_s)


def back_after(seen: Seen, deadline_s: float, **given: float) -> float:
    """In deadlines."""
    return back_after_s(seen.ends.cohorts, **given) / deadline_s  # type: ignore[arg-type]  # the table names them


def after_over_before(seen: Seen, before: Sequence[float], from_s: float) -> float | None:
    """The share on time of what arrived from then on, over what it was before."""
    cohorts = seen.ends.cohorts
    usual, after = cohorts.share_on_time(*before), cohorts.share_on_time(from_s, cohorts.until_s - 3.0)
    return after / usual if usual and after is not None else None


def on_time_sum(seen: Seen, weighed_by: str, from_s: float, until_s: float) -> float:
    return within(getattr(seen.ends.cohorts, weighed_by), from_s, until_s)


def level_changes_per_min(seen: Seen, from_s: float, until_s: float) -> float | None:
    return seen.level_changes(from_s, until_s) * 60.0 / (until_s - from_s) if seen.is_weir else None


def full_quality_after_s(seen: Seen, from_s: float) -> float | None:
    """Until the last second in which anything was admitted below full quality."""
    series = seen.report.series
    degraded = [(place + 1) * series.bucket_s for place, level in enumerate(series.level) if level]
    return max(0.0, max(degraded, default=0.0) - from_s) if seen.is_weir else None


def _of_report(read: Read) -> Callable[[Seen], float | None]:
    return lambda seen: read(seen.report)


CLOSER: Mapping[str, Closer] = {
    **{name: Closer(*FIGURES[name], _of_report(read)) for name, read in READ.items()},
    "useful_time": Closer(
        "useful worker time", "%", _of_report(lambda report: report.work.useful_s / report.work.available_s)
    ),
    "late_answers": Closer(
        "answers sent after their deadline", "", _of_report(lambda report: report.answers_after_deadline)
    ),
    "missed": Closer("missed after using a worker", "%", _of_report(lambda report: report.missed_after_worker_share)),
    "dropped": Closer("dropped from the queue", "%", _of_report(lambda report: report.dropped_after_admission_share)),
    "wasted": Closer("wasted worker time", "%", _of_report(lambda report: report.work.wasted_share)),
    "gap_to_bound": Closer("gap / its bound", "", gap_to_bound),
    "gap_to_vtc_bound": Closer("gap / VTC's bound", "", gap_to_vtc_bound),
    "gap_s": Closer("gap in work of all workers", "s", _of_report(gap_s)),
    "jain": Closer("Jain's index, worst 60 s", "", _of_report(lambda report: report.fairness.jain_least)),
    "back_after": Closer("back at {share:.0%} of the on-time rate after", "deadlines", back_after),
    "after_over_before": Closer("on time from second {from_s:g} on / before", "", after_over_before),
    "coverage_error": Closer("waits below the predicted q{quantile:g}, off by", "%", coverage_error),
    "hints_admitted": Closer(
        "first obeyed hints admitted", "%", _of_report(lambda report: report.hints.first_admitted_share)
    ),
    "regret": Closer("regret against the oracle", "%", regret),
    "on_time_sum": Closer("answers on time, weighed by {weighed_by}", "", on_time_sum),
    "level_changes_per_min": Closer(
        "level changes a minute, second {from_s:g} to {until_s:g}", "", level_changes_per_min
    ),
    "full_quality_after_s": Closer("full quality again after", "s", full_quality_after_s),
}


def closer(figure: str, of: str | None) -> Closer:
    """The figure of all, or of a group. Raises KeyError for one that there is not."""
    if of is None:
        return CLOSER[figure]
    words, unit = FIGURES[figure]
    read = {
        "on_time": partial(group_on_time, of=of),
        "answers_p95_ms": partial(group_p95_ms, of=of),
    }[figure]
    return Closer(f"{of}: {words}", unit, read)
