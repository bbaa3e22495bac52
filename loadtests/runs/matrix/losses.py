"""Every figure in which another subject before the same workers was better than Weir, by more than noise.

Each has the other's goodput, since a subject that answers almost nothing is easily fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from loadtests.report.figure import formatted
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Row, Series
from loadtests.runs.matrix.subjects import SUBJECTS, WEIR, Subject
from loadtests.runs.matrix.targets import BASELINE


@dataclass(frozen=True, slots=True)
class Measure:
    """A comparable figure. Differences below `noise` (in its unit) plus `noise_share` of Weir's value do not count."""

    name: str
    unit: str
    of: Callable[[Row], float]
    more_is_better: bool
    noise_share: float = 0.0
    noise: float = 0.0

    def better(self, theirs: Row, ours: Row) -> bool:
        """Whether theirs is better by more than noise. A gateway without answers is never better."""
        if not theirs.answers_per_s:
            return False
        by = self.of(theirs) - self.of(ours) if self.more_is_better else self.of(ours) - self.of(theirs)
        return by > self.noise + self.noise_share * abs(self.of(ours))


MEASURES = (
    Measure("answers on time a second", "", lambda row: row.on_time_per_s, True, noise_share=0.03),
    Measure("goodput / capacity", "", lambda row: row.goodput, True, noise=0.03),
    Measure("p50 of the admitted", "ms", lambda row: row.p50_ms, False, noise_share=0.10, noise=3),
    Measure("p95 of the admitted", "ms", lambda row: row.p95_ms, False, noise_share=0.10, noise=5),
    Measure("failure rate", "%", lambda row: row.failed, False, noise=0.002),
    Measure("work in vain", "%", lambda row: row.in_vain, False, noise=0.01),
    Measure("fairness", "", lambda row: 1.0 if row.fairness is None else row.fairness, True, noise=0.02),
)


@dataclass(frozen=True, slots=True)
class Loss:
    scenario: str
    what: str
    ours: str
    subject: str
    theirs: str
    their_goodput: float


def losses(series: Series, cases: Mapping[str, Case]) -> list[Loss]:
    return list(_losses(series, cases))


def _losses(series: Series, cases: Mapping[str, Case]) -> Iterator[Loss]:
    for name, case in cases.items():
        ours = series.cell(name, WEIR.name)
        for row in ours.rows if ours is not None else ():
            title = case.title if row.name == name else f"{case.title}: {row.name}"
            for subject in SUBJECTS[1:]:
                theirs = series.row(name, subject.name, row.name)
                if theirs is not None:
                    yield from _of_rows(title, row, theirs, subject)
        if name == BASELINE:
            yield from _processor(series, case)


def _of_rows(title: str, ours: Row, theirs: Row, subject: Subject) -> Iterator[Loss]:
    for measure in MEASURES:
        if measure.better(theirs, ours):
            yield Loss(title, measure.name, formatted(measure.of(ours), measure.unit), subject.title,
                       formatted(measure.of(theirs), measure.unit), theirs.goodput)  # fmt: skip
    for mine, other in zip(ours.tenants, theirs.tenants, strict=False):
        if len(ours.tenants) == 2 and other.on_time > mine.on_time + 0.02:
            yield Loss(title, f"{mine.name}: answered on time", formatted(mine.on_time, "%"), subject.title,
                       formatted(other.on_time, "%"), theirs.goodput)  # fmt: skip


def _processor(series: Series, case: Case) -> Iterator[Loss]:
    ours = series.cell(case.name, WEIR.name)
    for subject in SUBJECTS:
        theirs = None if subject.is_router else series.cell(case.name, subject.name)
        if ours is not None and theirs is not None and theirs.gateway_ms < ours.gateway_ms:
            yield Loss(case.title, "processor time of the gateway, a request", formatted(ours.gateway_ms, "ms"),
                       subject.title, formatted(theirs.gateway_ms, "ms"), theirs.rows[0].goodput)  # fmt: skip
