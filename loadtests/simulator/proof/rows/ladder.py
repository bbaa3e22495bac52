"""Row 11: does it pay to answer worse rather than not at all?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadtests.simulator.proof.line import COUNT, Line, Look, Read, Row, Unit, of
from loadtests.simulator.proof.observe import Cohorts, Seen, changes_between

CASE = "ladder"
PHASE = (20.0, 80.0)
"""Three times capacity."""
STEADY = (30.0, 80.0)
WITHOUT = "weir_without_ladder"


def gain(of_cohorts: Callable[[Cohorts], float]) -> Read:
    """A sum over the overload, over the same sum of Weir without its ladder."""

    def figure(look: Look) -> float | None:
        mine, without = look(CASE), look(CASE, WITHOUT)
        return of_cohorts(mine.cohorts) / of_cohorts(without.cohorts) if mine and without else None

    return figure


def quality(cohorts: Cohorts) -> float:
    return cohorts.quality_in(*PHASE)


def tokens(cohorts: Cohorts) -> float:
    return cohorts.tokens_in(*PHASE)


def on_time(cohorts: Cohorts) -> float:
    return cohorts.on_time_in(*PHASE)


def changes_per_min(from_s: float, until_s: float) -> Callable[[Seen], float | None]:
    def figure(seen: Seen) -> float | None:
        if not seen.report.policy.startswith("weir"):
            return None
        return changes_between(seen.levels, from_s, until_s) * 60.0 / (until_s - from_s)

    return figure


def full_again_s(seen: Seen) -> float | None:
    """From the end of the overload to the last second in which anything was admitted below full quality."""
    if not seen.report.policy.startswith("weir"):
        return None
    series = seen.report.series
    degraded = [(place + 1) * series.bucket_s for place, level in enumerate(series.level) if level]
    return max(0.0, max(degraded, default=0.0) - PHASE[1])


def _lines() -> Iterator[Line]:
    yield Line("on-time answers by weight of level / without ladder", (CASE,), gain(quality), target=1.5)
    yield Line("on-time answers by share of tokens given / without ladder", (CASE,), gain(tokens), target=1.5)
    yield Line("on-time answers, unweighted / without ladder", (CASE,), gain(on_time))
    steady, whole = changes_per_min(*STEADY), changes_per_min(0.0, 120.0)
    yield Line("level changes a minute, steady overload", (CASE,), of(CASE, steady), COUNT, 2.0, False)
    yield Line("level changes a minute, whole run, up and down", (CASE,), of(CASE, whole), COUNT, 2.0, False)
    yield Line("full quality after the overload", (CASE,), of(CASE, full_again_s), Unit("s", digits=0), 15.0, False)


HOW = """Half of capacity, three times capacity from second 20 to 80, half again; on time of what arrived in the
overload, each answer weighted by its level as the scenario file says (1, .9, .8, .65, .5), or by the share of its
uncut answer that it got; over the same sum of Weir with the ladder switched off. Level changes: in steady overload
(second 30 to 80), and over the whole run of two minutes, the way up and the way down included. Full quality: until the
last second in which anything was admitted below level 0."""

ROWS = (Row(11, "The ladder pays", HOW, tuple(_lines())),)
