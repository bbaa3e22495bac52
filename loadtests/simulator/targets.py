"""What a scenario's file wants to hold, as the simulator finds it of Weir. Windows are for stages that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadtests.report.figure import Figure
from loadtests.scenarios.figures import is_asked, judged
from loadtests.scenarios.model import Must
from loadtests.simulator.columns import members
from loadtests.simulator.report import PolicyReport, Quantiles
from loadtests.simulator.results import Cell, Comparison

WEIR = "weir"
Read = Callable[[PolicyReport], float | None]


def _services(seconds: float | None, report: PolicyReport) -> float | None:
    return None if seconds is None else seconds / report.capacity.service_s


def _ms(quantiles: Quantiles) -> float | None:
    return None if quantiles.p95 is None else 1000 * quantiles.p95


READ: dict[str, Read] = {
    "on_time": lambda report: report.ledger.on_time / report.ledger.distinct if report.ledger.distinct else None,
    "goodput": lambda report: report.goodput_cost_to_capacity,
    "wait_p50": lambda report: _services(report.wait_s.p50, report),
    "wait_p95": lambda report: _services(report.wait_s.p95, report),
    "p95_ms": lambda report: _ms(report.latency_s),
    "answers_p95_ms": lambda report: _ms(report.latency_s),
    "in_vain": lambda report: report.work.wasted_share,
    "dispatches": lambda report: report.dispatches_per_distinct,
}


def targets(comparison: Comparison) -> list[Figure]:
    """Of Weir, at the greatest load of a sweep; means over the seeds."""
    cells = [cell for cell in comparison.of(WEIR) if cell.load == comparison.loads[-1]]
    return [figure for cell in cells[:1] for figure in _of(comparison, cell)]


def _of(comparison: Comparison, cell: Cell) -> Iterator[Figure]:
    for must in comparison.scenario.must:
        if must.window is None and is_asked(must, "simulator"):
            value = cell.mean(_worst(comparison, must) if must.of else READ.get(must.figure, lambda report: None))
            if value is not None:
                yield judged(must, value)


def _worst(comparison: Comparison, must: Must) -> Read:
    """The share on time of the worst tenant of a group."""
    group = next(each for each in comparison.scenario.tenants if each.name == must.of)

    def read(report: PolicyReport) -> float | None:
        shares = [each.on_time_share for each in members(report, group) if each.on_time_share is not None]
        return min(shares, default=None)

    return read if must.figure == "on_time" else lambda report: None
