"""The columns of the comparison: headings, values, and number formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.scenarios.model import TenantGroup
from loadtests.simulator.readings import READ, Read, mean_known, members, share_on_time
from loadtests.simulator.report import PolicyReport, TenantReport
from loadtests.simulator.results import Cell

MIN_REQUESTS = 20
OfTenants = Callable[[Sequence[TenantReport]], float | None]


@dataclass(frozen=True, slots=True)
class Column:
    """Two lines of heading, the figure, and its format."""

    head: str
    below: str
    read: Read
    write: Callable[[float], str]
    matters: Read | None = None
    """The column is shown if any policy has this figure; default: `read`."""

    @property
    def name(self) -> str:
        return f"{self.head} {self.below}".strip()

    def text(self, cell: Cell, nothing: str = "") -> str:
        value = cell.mean(self.read)
        return nothing if value is None else self.write(value)

    def has_value(self, cells: Sequence[Cell]) -> bool:
        return any(cell.mean(self.matters or self.read) is not None for cell in cells)


# ---- number formats


def share(value: float) -> str:
    """`97%`, with a decimal near 0 and 100: `0.4%`, `99.6%`."""
    percent = 100 * value
    if 0 < percent < 0.05:
        return "<0.1%"
    near_an_end = 0 < abs(percent) < 9.95 or 90.05 < percent < 99.95
    return f"{percent:.1f}%" if near_an_end else f"{percent:.0f}%"


def seconds(value: float) -> str:
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s" if value < 99.95 else f"{value:.0f} s"


def milliseconds(value: float) -> str:
    """`1,234` below ten seconds, `12.3s` above."""
    return f"{1000 * value:,.0f}" if value < 9.9995 else f"{value:.1f}s" if value < 99.95 else f"{value:.0f}s"


def ratio(value: float) -> str:
    return f"{value:.2f}"


def short(value: float) -> str:
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def load_name(load: float) -> str:
    return f"{load:g}x"


# ---- the columns


def worst_tenant(tenants: Sequence[TenantReport]) -> float | None:
    """The smallest on-time share of the tenants with at least MIN_REQUESTS requests."""
    shares = [each.on_time_share for each in tenants if each.ledger.distinct >= MIN_REQUESTS]
    return min((value for value in shares if value is not None), default=None)


def _has_tenants(report: PolicyReport) -> float | None:
    return 1.0 if len(report.tenants) > 1 else None


def _retried(report: PolicyReport) -> float | None:
    return 1.0 if report.ledger.attempts > report.ledger.distinct else None


def _degraded(report: PolicyReport) -> float | None:
    return 1.0 if any(answers for level, answers in report.quality.by_level.items() if level) else None


def _cut(report: PolicyReport) -> float | None:
    return 1.0 if report.quality.clamped or _degraded(report) else None


MAIN = (
    Column("on time", "of asked", READ["on_time"], share),
    Column("on time", "of cap.", READ["goodput"], ratio),
    Column("wait", "p50 ms", READ["wait_p50_s"], milliseconds),
    Column("wait", "p95 ms", READ["wait_p95_s"], milliseconds),
    Column("latency", "p95 ms", READ["latency_p95_s"], milliseconds),
    Column("refused", "", READ["refused_at_door"], share),
    Column("dropped", "", READ["dropped"], share),
    Column("wasted", "", READ["in_vain"], share),
    Column("gap", "s", READ["gap_s"], short),
    Column("sim.", "k/s", lambda report: report.simulated_per_real_s / 1000, short),
)
MORE = (
    Column("missed", "running", READ["missed"], share),
    Column("latency", "/ deadline p99", lambda report: report.latency_to_deadline.p99, ratio),
    Column("Jain index", "least, 60 s", READ["jain"], ratio),
    Column("on time,", "worst tenant", lambda report: worst_tenant(report.tenants), share, _has_tenants),
    Column("starts", "per request", READ["dispatches"], ratio, _retried),
    Column("hints", "admitted", READ["hints_admitted"], share),
    Column("worth", "by level", lambda report: report.quality.weighted_on_time, whole, _degraded),
    Column("worth", "by tokens", lambda report: report.quality.token_weighted_on_time, whole, _cut),
    Column("level", "changes/min", lambda report: report.quality.level_changes_per_min, ratio, _degraded),
)


MATRICES = (
    Column("work done on time, relative to capacity", "", READ["goodput"], ratio),
    Column("wait of the admitted, p95, ms", "", READ["wait_p95_s"], milliseconds),
    Column("dropped after admission, of the admitted", "", READ["dropped"], share),
    Column("work wasted, of the time workers were busy", "", READ["in_vain"], share),
)
GROUPED: tuple[tuple[str, str, OfTenants, Callable[[float], str]], ...] = (
    ("on time", "of asked", share_on_time, share),
    ("worst", "tenant", worst_tenant, share),
    ("wait", "p95 ms", lambda found: mean_known(each.wait_s.p95 for each in found), milliseconds),
    ("latency", "p95 ms", lambda found: mean_known(each.latency_s.p95 for each in found), milliseconds),
    ("share of", "service", lambda found: sum(each.served_cost_share for each in found), share),
)
"""Heading, figure and format, computed over the tenants of a group."""


def of_group(group: TenantGroup) -> list[Column]:
    def read(of: OfTenants) -> Read:
        return lambda report: of(members(report, group))

    return [Column(head, below, read(of), write) for head, below, of, write in GROUPED]
