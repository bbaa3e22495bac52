"""Row 9: predicted waits, retry hints, and what was refused though it could have been served."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.simulator.proof.cases import LEARNED
from loadtests.simulator.proof.line import PERCENT, POINTS, Line, Read1, Row, of
from loadtests.simulator.proof.observe import Seen

LOADS = ("equal at 1x", "equal at 2x", "equal at 10x", "burst")
UNKNOWN = ("unknown lengths at 1x", "unknown lengths at 2x", "unknown lengths at 10x")


def off(quantile: float) -> Read1:
    """How far the share of waits below the predicted quantile is from it."""

    def figure(seen: Seen) -> float | None:
        return abs(seen.covered[quantile] - quantile) if quantile in seen.covered else None

    return figure


def hints_admitted(seen: Seen) -> float | None:
    return seen.report.hints.first_admitted_share


def regret(seen: Seen) -> float | None:
    """What the oracle would have served more, as a share of what it would have served."""
    if not seen.oracle_cost:
        return None
    ours = seen.report.goodput_cost_per_s * seen.report.window_s
    return (seen.oracle_cost - ours) / seen.oracle_cost


def row_9(mixes: tuple[str, ...]) -> Row:
    """On these mixes."""
    return Row(9, "Honest estimates", HOW, tuple(_lines(mixes)))


def _lines(mixes: tuple[str, ...]) -> Iterator[Line]:
    for quantile in (0.9, 0.95):
        for case in mixes:
            name = f"waits below predicted q{quantile * 100:g}: off by, {case}"
            yield Line(name, (case,), of(case, off(quantile)), POINTS, 0.03, False)
    case = "hints"
    yield Line("first obeyed hints admitted, after a burst of 2 s", (case,), of(case, hints_admitted), PERCENT, 0.8)
    for case in LOADS:
        yield Line(f"regret against the oracle, {case}", (case,), of(case, regret), PERCENT, 0.05, False)
    for case in UNKNOWN:
        for policy, which in (("weir", "no clamp"), ("weir_with_clamp", "with clamp")):
            name = f"regret against the oracle, {case}, {which}"
            yield Line(name, (case,), of(case, regret), PERCENT, 0.05, False, policy)


HOW = """A wait is predicted at the door, until a worker is given the request; of the waits of what arrived in the
counting window, a share q should be no longer than the predicted q-quantile. One dropped in the queue counts as longer
if it had waited longer by then, and not at all otherwise. Runs last a minute or more, learning included. Hints: ten
times capacity for 2 s, then half of capacity, everyone comes back when told; of the first returns, the share that was
admitted (no other policy hints). The oracle knows every arrival, length and deadline, leaves out what could not be on
time on an empty worker, and serves the rest as a fluid at the measured capacity, earliest deadline first, parts
counting: no schedule can have more. Only work on time counts. Regret is (the oracle's - ours) / the oracle's; it can be
negative where a policy serves a mix that is easier on the workers than the one that was asked for."""

ROWS = (row_9(LEARNED),)
