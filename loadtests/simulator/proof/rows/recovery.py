"""Rows 6 and 7: how soon all is well again after a burst, and after an outage with clients who ask again at once."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.simulator.proof.line import Line, Read1, Row, Unit, of
from loadtests.simulator.proof.observe import STEP_S, Cohorts, Seen

DEADLINES = Unit("deadlines", digits=1)
FOR_S = 5.0
"""Back means back for so long."""


def recovered_after(
    cohorts: Cohorts, before: tuple[float, float], after_s: float, share: float, span_s: float
) -> float:
    """Seconds from `after_s` until spans of arrivals are on time as often as `share` of before, for FOR_S."""
    usual = cohorts.share_on_time(*before) or 0.0
    good_for, at = 0.0, after_s
    while at + span_s <= cohorts.until_s - 3.0:
        now = cohorts.share_on_time(at, at + span_s)
        good_for = good_for + STEP_S if now is None or now >= share * usual else 0.0
        at += STEP_S
        if good_for >= FOR_S:
            break
    return max(0.0, at - good_for - after_s)


def burst_recovery(before: tuple[float, float], ends_s: float, deadline_s: float, span_s: float) -> Read1:
    """In median deadlines."""

    def figure(seen: Seen) -> float:
        return recovered_after(seen.cohorts, before, ends_s, 0.9, span_s) / deadline_s

    return figure


OUTAGE = (20.0, 40.0)


def goodput_back(seen: Seen) -> float | None:
    """Share on time of what arrived from 20 s after the outage, over what it was before the outage."""
    cohorts = seen.cohorts
    before = cohorts.share_on_time(3.0, OUTAGE[0] - 1.0)
    after = cohorts.share_on_time(OUTAGE[1] + 20.0, cohorts.until_s - 3.0)
    return after / before if before and after is not None else None


def storm_recovery_s(seen: Seen) -> float:
    return recovered_after(seen.cohorts, (3.0, OUTAGE[0] - 1.0), OUTAGE[1], 0.97, 1.0)


def dispatches(seen: Seen) -> float | None:
    return seen.report.dispatches_per_distinct


def _row_6() -> Iterator[Line]:
    read = burst_recovery((3.0, 19.0), 40.0, 1.0, 1.0)
    yield Line("back at 90 % of the on-time rate, equal", ("burst",), of("burst", read), DEADLINES, 1.0, False)
    case, read = "burst of unknown lengths", burst_recovery((20.0, 80.0), 120.0, 12.5, 12.5)
    for policy, which in (("weir", "no clamp"), ("weir_with_clamp", "with clamp")):
        name = f"back at 90 % of the on-time rate, unknown lengths, {which}"
        yield Line(name, (case,), of(case, read), DEADLINES, 1.0, False, policy)


def _row_7() -> Iterator[Line]:
    case = ("retry storm",)
    yield Line("goodput from 20 s after the outage / before", case, of(*case, goodput_back), target=0.97)
    yield Line("worker dispatches per distinct request", case, of(*case, dispatches), target=1.1, at_least=False)
    seconds = Unit("s", digits=1)
    yield Line("back at 97 % of the on-time rate after", case, of(*case, storm_recovery_s), seconds, at_least=False)


HOW_6 = """75 % of capacity, ten times capacity for 20 s, 75 % again. The on-time rate is the share on time of those
who arrived in a moving second (in a moving 12.5 s, the median deadline, where lengths are unknown: 45 answers). The
time is from the end of the burst to the first arrivals from which on it stays at 90 % of the share before the burst
for 5 s. A run that never recovers counts to its end."""
HOW_7 = """75 % of capacity, all workers down from second 20 to 40; each client asks again at once, three times at
most, with a new deadline. Share on time of distinct requests that arrived from second 60 on, over those before the
outage. Dispatches count over the whole run, the outage included."""

ROWS = (
    Row(6, "After a burst", HOW_6, tuple(_row_6())),
    Row(7, "After an outage, with a retry storm", HOW_7, tuple(_row_7())),
)
