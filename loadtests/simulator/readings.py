"""Figures of a report, by name; scenarios and promises.yaml set targets for some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from loadtests.scenarios.arrivals import Trace
from loadtests.scenarios.model import Scenario, TenantGroup
from loadtests.simulator.report import PolicyReport, Quantiles, TenantReport

Read = Callable[[PolicyReport], float | None]


def members(report: PolicyReport, group: TenantGroup) -> list[TenantReport]:
    """The reports of a group's tenants; one report for all of them where the scenario has many tenants."""
    if isinstance(group.arrivals, Trace):
        return [each for each in report.tenants if each.name == group.name or each.name.startswith(f"{group.name}-")]
    return [each for each in report.tenants if group.name in (each.name, each.name.rpartition("-")[0])]


def min_on_time(scenario: Scenario, of: str) -> Read:
    group = next(each for each in scenario.tenants if each.name == of)

    def read(report: PolicyReport) -> float | None:
        shares = [each.on_time_share for each in members(report, group) if each.on_time_share is not None]
        return min(shares, default=None)

    return read


def share_on_time(tenants: Sequence[TenantReport]) -> float | None:
    """The on-time share of all requests of these tenants; None without requests."""
    return _share(sum(each.ledger.on_time for each in tenants), sum(each.ledger.distinct for each in tenants))


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def gap_s(report: PolicyReport) -> float | None:
    """The fairness gap in seconds of all workers."""
    gap = report.fairness.gap_cost
    return None if gap is None else gap / report.capacity.cost_per_s


def gap_over_bound(report: PolicyReport) -> float | None:
    """The fairness gap over its bound for several routers; None with one."""
    routers, gap = report.routers, report.fairness.gap_cost
    return None if routers is None or gap is None or not routers.gap_bound_cost else gap / routers.gap_bound_cost


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _services(seconds: float | None, report: PolicyReport) -> float | None:
    return None if seconds is None else seconds / report.capacity.service_s


def _p95_ms(quantiles: Quantiles) -> float | None:
    return None if quantiles.p95 is None else 1000 * quantiles.p95


READ: Mapping[str, Read] = {
    "on_time": lambda report: _share(report.ledger.on_time, report.ledger.distinct),
    "goodput": lambda report: report.goodput_cost_to_capacity,
    "wait_p50": lambda report: _services(report.wait_s.p50, report),
    "wait_p95": lambda report: _services(report.wait_s.p95, report),
    "wait_p50_s": lambda report: report.wait_s.p50,
    "wait_p95_s": lambda report: report.wait_s.p95,
    "latency_p95_s": lambda report: report.latency_s.p95,
    "p95_ms": lambda report: _p95_ms(report.latency_s),
    "answers_p95_ms": lambda report: _p95_ms(report.latency_s),
    "refused": lambda report: _share(
        report.ledger.rejected_total + report.ledger.evicted_total, report.ledger.distinct
    ),
    "refused_at_door": lambda report: _share(report.ledger.rejected_total, report.ledger.distinct),
    "dropped": lambda report: report.dropped_after_admission_share,
    "missed": lambda report: report.missed_after_worker_share,
    "late_answers": lambda report: report.answers_after_deadline,
    "in_vain": lambda report: report.work.wasted_share,
    "useful_time": lambda report: report.work.useful_s / report.work.available_s,
    "gap_s": gap_s,
    "jain": lambda report: report.fairness.jain_min,
    "dispatches": lambda report: report.dispatches_per_distinct,
    "over_slots": lambda report: None if report.routers is None else report.routers.over_slots,
    "gap_over_bound": gap_over_bound,
    "hints_admitted": lambda report: report.hints.first_admitted_share,
}
"""By name. Figures that may have a target have their words in `loadtests.scenarios.figures.FIGURES`."""
