"""What was measured of each row, and the targets that it is held to. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from loadtests.load.figures import Figures
from loadtests.report.figure import Figure, at_most
from loadtests.runs.siege.attackers import Counts
from loadtests.runs.siege.attacks import Attack

UNDISTURBED = "undisturbed"
POOLED, NEWCOMER = "honest", "honest-newcomer"  # as tenants; in figures they are "pooled" and "new"
CLIENTS = {POOLED: "pooled", NEWCOMER: "new"}
MOST_GROWTH_MB = 150.0
MOST_RATIO = 1.5
MOST_LATE = 0.05


@dataclass
class Row:
    """What was measured. `memory_mb` and `descriptors` are the router's, during the attack; `fault`: it went wrong.

    `late` is the share of the requests that left the client late, of those that count.
    """

    attack: Attack | None
    measured: Figures | None = None
    memory_mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    router_cpu: float = 0.0
    late: float = 0.0
    fault: str = ""

    @property
    def name(self) -> str:
        return self.attack.name if self.attack else UNDISTURBED

    @property
    def about(self) -> str:
        return f"{self.attack.count:,} {self.attack.about}" if self.attack else "the honest tenant alone"


@dataclass(frozen=True)
class Result:
    """`rows` begins with the undisturbed one."""

    seconds: float
    per_s: float
    rows: Sequence[Row]

    @property
    def judged(self) -> list[Figure]:
        """Every figure that has a target."""
        return [figure for found in judge(self.rows) for figure in found if figure.held is not None]

    @property
    def held(self) -> bool:
        """Whether every target was met in every row, and every row could be played."""
        return all(figure.held for figure in self.judged) and not any(row.fault for row in self.rows)


def judge(rows: Sequence[Row]) -> list[list[Figure]]:
    """The figures of each row; the first one is the undisturbed one. None of a row that could not be played."""
    calm = rows[0]
    return [list(_figures(row, calm)) if row.measured and calm.measured else [] for row in rows]


def baseline_mb(calm: Row) -> float:
    """The median of the second half of the undisturbed row; 0 where there is nothing."""
    return median(calm.memory_mb[len(calm.memory_mb) // 2 :]) if calm.memory_mb else 0.0


def _figures(row: Row, calm: Row) -> Iterator[Figure]:
    assert row.measured is not None
    assert calm.measured is not None
    growth = max(row.memory_mb, default=0.0) - baseline_mb(calm)
    yield at_most("memory", growth, MOST_GROWTH_MB, "MB")
    for tenant, kind in CLIENTS.items():
        judged = not (row.attack and row.attack.exhausts and tenant == NEWCOMER)
        yield from _client(kind, tenant, row.measured, calm.measured, judged)
    yield Figure("connected", row.counts.most_connected, note=f"of {row.counts.wanted:,}")
    yield Figure("cut off", row.counts.cut)
    yield Figure("refused", row.counts.refused)
    yield Figure("descriptors", max(row.descriptors, default=0))
    yield Figure("router's core", row.router_cpu, "%")
    yield at_most("late", row.late, MOST_LATE, "%")


def _client(kind: str, tenant: str, found: Figures, calm: Figures, judged: bool) -> Iterator[Figure]:
    share, usual = found.tenants[tenant], calm.tenants[tenant].answers_ms.p99
    others = ", ".join(f"{count:,} {ending}" for ending, count in share.endings.items())
    ratio = share.answers_ms.p99 / usual if usual else 0.0
    yield Figure(f"{kind}: success", share.on_time, "%", 1.0 if judged else None, note=others)
    yield Figure(f"{kind}: p50", share.answers_ms.p50, "ms")
    yield Figure(f"{kind}: p99", share.answers_ms.p99, "ms")
    yield Figure(f"{kind}: p99 /", ratio, "", MOST_RATIO if judged else None, at_least=False)
