"""The figures of promises.yaml by name, computed from a run and the arguments under `given`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from loadtests.scenarios.figures import FIGURES
from loadtests.simulator.oracle import best_work
from loadtests.simulator.readings import READ, members, share_on_time
from loadtests.simulator.watching import STEP_S, Cohorts, Seen, within

FOR_S = 5.0
"""How long the on-time share must stay up after a recovery, in seconds."""


class Metric(NamedTuple):
    """Its words with arguments in braces, its unit, and its function."""

    words: str
    unit: str
    read: Callable[..., float | None]


def coverage_error(seen: Seen, quantile: float) -> float | None:
    coverage = seen.predictions.coverage()
    return abs(coverage.shares[quantile] - quantile) if coverage else None


def regret(seen: Seen) -> float | None:
    """The oracle's work less the policy's, as a share of the oracle's. See oracle.py."""
    report = seen.report
    best = best_work(seen.ends.asked, report.capacity.cost_per_s)
    return (best - report.goodput_cost_per_s * report.window_s) / best if best else None


def gap_to_bound(seen: Seen) -> float | None:
    """The gap over 2 Q + (Cmax + I_f) / w_f + (Cmax + I_g) / w_g, I being the most that was in flight."""
    fairness, inflight = seen.report.fairness, seen.inflight
    if fairness.gap_cost is None or not inflight.quantum:
        return None
    weights = {tenant.name: tenant.weight for tenant in seen.report.tenants}
    pair = fairness.gap_pair or ()
    shares = sum((fairness.largest_cost + inflight.largest.get(name, 0.0)) / weights[name] for name in pair)
    return fairness.gap_cost / (2 * inflight.quantum + shares)


def gap_to_vtc_bound(seen: Seen) -> float | None:
    """The gap over 2 * max(w_p * L_input, w_q * M), M being the largest `max_tokens` in all slots."""
    max_tokens = max(group.max_tokens for group in seen.scenario.tenants)
    prompt = seen.weights.cost(seen.ends.longest_prompt, 0)
    batch = seen.weights.cost(0, max_tokens * seen.report.capacity.slots)
    gap = seen.report.fairness.gap_cost
    return None if gap is None else gap / (2 * max(prompt, batch))


def group_on_time(seen: Seen, of: str) -> float | None:
    group = next(each for each in seen.scenario.tenants if each.name == of)
    return share_on_time(members(seen.report, group))


def group_p95_ms(seen: Seen, of: str) -> float | None:
    latencies = sorted(seen.ends.latencies_s.get(of, ()))
    return 1000 * latencies[min(len(latencies) - 1, int(0.95 * len(latencies)))] if latencies else None


def back_after_s(cohorts: Cohorts, before: Sequence[float], from_s: float, share: float, span_s: float) -> float:
    """Seconds from `from_s` until arrivals in `span_s` have `share` of the earlier on-time share, for FOR_S."""
    usual = cohorts.share_on_time(*before) or 0.0
    good_for, at = 0.0, from_s
    while at + span_s <= cohorts.until_s - 3.0 and good_for < FOR_S:
        now = cohorts.share_on_time(at, at + span_s)
        good_for = good_for + STEP_S if now is None or now >= share * usual else 0.0
        at += STEP_S
    return max(0.0, at - good_for - from_s)


def back_after(seen: Seen, deadline_s: float, **given: Any) -> float:
    return back_after_s(seen.ends.cohorts, **given) / deadline_s


def after_over_before(seen: Seen, before: Sequence[float], from_s: float) -> float | None:
    """The on-time share of arrivals from `from_s` on, over the share before."""
    cohorts = seen.ends.cohorts
    usual, after = cohorts.share_on_time(*before), cohorts.share_on_time(from_s, cohorts.until_s - 3.0)
    return after / usual if usual and after is not None else None


def on_time_sum(seen: Seen, weighed_by: str, from_s: float, until_s: float) -> float:
    return within(getattr(seen.ends.cohorts, weighed_by), from_s, until_s)


def level_changes_per_min(seen: Seen, from_s: float, until_s: float) -> float | None:
    return seen.level_changes(from_s, until_s) * 60.0 / (until_s - from_s) if seen.is_weir else None


def full_quality_after_s(seen: Seen, from_s: float) -> float | None:
    """Seconds from `from_s` to the end of the last bucket with an admission below full quality."""
    series = seen.report.series
    degraded = [(place + 1) * series.bucket_s for place, level in enumerate(series.level) if level]
    return max(0.0, max(degraded, default=0.0) - from_s) if seen.is_weir else None


METRICS: Mapping[str, Metric] = {
    "gap_to_bound": Metric("gap / its bound", "", gap_to_bound),
    "gap_to_vtc_bound": Metric("gap / VTC's bound", "", gap_to_vtc_bound),
    "back_after": Metric("back at {share:.0%} of the on-time rate after", "deadlines", back_after),
    "after_over_before": Metric("on time from second {from_s:g} on / before", "", after_over_before),
    "coverage_error": Metric("waits below the predicted q{quantile:g}, off by", "%", coverage_error),
    "regret": Metric("regret against the oracle", "%", regret),
    "on_time_sum": Metric("answers on time, weighed by {weighed_by}", "", on_time_sum),
    "level_changes_per_min": Metric(
        "level changes a minute, second {from_s:g} to {until_s:g}", "", level_changes_per_min
    ),
    "full_quality_after_s": Metric("full quality again after", "s", full_quality_after_s),
}
OF: Mapping[str, Callable[[Seen, str], float | None]] = {"on_time": group_on_time, "answers_p95_ms": group_p95_ms}
"""Figures of a group of tenants."""


def metric(figure: str, of: str | None) -> Metric:
    """The figure, of all tenants or of the group `of`. Raises KeyError for an unknown figure."""
    if figure in METRICS:
        return METRICS[figure]
    words, unit = FIGURES[figure]
    if of is not None:
        return Metric(f"{of}: {words}", unit, lambda seen: OF[figure](seen, of))
    return Metric(words, unit, lambda seen: READ[figure](seen.report))
