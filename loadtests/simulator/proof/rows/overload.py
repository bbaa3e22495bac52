"""Rows 1 to 3: goodput stays, the wait is short, what is admitted is served, and workers work for someone."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.simulator.proof.cases import EQUAL_LOADS, MIXES, UNKNOWN_LOADS
from loadtests.simulator.proof.line import PERCENT, WHOLE, Line, Look, Row, largest, of
from loadtests.simulator.proof.observe import Seen
from loadtests.simulator.report import Quantiles

EQUAL = tuple(f"equal at {load}x" for load in EQUAL_LOADS)
UNKNOWN = tuple(f"unknown lengths at {load}x" for load in UNKNOWN_LOADS)
BOTH = ("weir", "weir_with_clamp")
ENOUGH = {2: 0.95, 5: 0.95, 10: 0.95, 20: 0.93}


def goodput(seen: Seen) -> float:
    """Work on time per second, over capacity."""
    return seen.report.goodput_cost_to_capacity


def useful_time(seen: Seen) -> float:
    """Of the slots' time: spent on answers that were on time."""
    return seen.report.work.useful_s / seen.report.work.available_s


def wait_p50(seen: Seen) -> float | None:
    return _in_services(seen, seen.report.wait_s, "p50")


def wait_p95(seen: Seen) -> float | None:
    return _in_services(seen, seen.report.wait_s, "p95")


def _in_services(seen: Seen, wait_s: Quantiles, quantile: str) -> float | None:
    value: float | None = getattr(wait_s, quantile)
    return None if value is None else value / seen.report.capacity.service_s


def slope(look: Look) -> float | None:
    low, high = look("equal at 2x"), look("equal at 20x")
    return goodput(high) - goodput(low) if low and high else None


def _named(policy: str) -> str:
    return "with clamp" if policy == "weir_with_clamp" else "no clamp"


def _row_1() -> Iterator[Line]:
    for load, case in zip(EQUAL_LOADS, EQUAL, strict=True):
        yield Line(f"goodput / capacity, {case}", (case,), of(case, goodput), target=ENOUGH[load])
    yield Line("goodput at 20x less goodput at 2x, equal", ("equal at 2x", "equal at 20x"), slope, target=-0.02)
    for load, case in zip(UNKNOWN_LOADS, UNKNOWN, strict=True):
        for policy in BOTH:
            name = f"goodput / capacity, {case}, {_named(policy)}"
            yield Line(name, (case,), of(case, goodput), target=ENOUGH[load], judged=policy)
            yield Line(f"useful worker time, {case}, {_named(policy)}", (case,), of(case, useful_time), judged=policy)
    for name, cases in (("equal", EQUAL), ("unknown lengths", UNKNOWN)):
        for quantile, read, most in (("p50", wait_p50, 2.0), ("p95", wait_p95, 4.0)):
            title = f"wait {quantile} in mean service times, worst load, {name}"
            yield Line(title, cases, largest(cases, read), target=most, at_least=False)


def late(seen: Seen) -> float:
    return seen.report.answers_after_deadline


def missed(seen: Seen) -> float | None:
    return seen.report.missed_after_worker_share


def dropped(seen: Seen) -> float | None:
    return seen.report.dropped_after_admission_share


FAILURES = ("one worker of two lost", "one worker of two slow")


def row_2(mixes: tuple[str, ...]) -> Row:
    """On these mixes."""
    return Row(2, "What is admitted is served", HOW_2, tuple(_row_2(mixes)))


def _row_2(mixes: tuple[str, ...]) -> Iterator[Line]:
    yield Line("answers sent after their deadline, all mixes", mixes, largest(mixes, late), WHOLE, 0.0, False)
    for name, read, most in (("missed after using a worker", missed, 0.01), ("dropped from the queue", dropped, 0.05)):
        for case in mixes:
            for policy in BOTH if case.startswith("unknown") else BOTH[:1]:
                which = f", {_named(policy)}" if case.startswith("unknown") else ""
                yield Line(f"{name}, {case}{which}", (case,), of(case, read), PERCENT, most, False, policy)
        for case in FAILURES:
            yield Line(f"{name}, {case}", (case,), of(case, read), PERCENT, at_least=False)


def wasted(seen: Seen) -> float:
    return seen.report.work.wasted_share


def _row_3() -> Iterator[Line]:
    for case, most in (("unknown lengths at 10x", 0.05), ("equal at 10x", 0.05)):
        yield Line(f"wasted worker time, {case}, no clamp", (case,), of(case, wasted), PERCENT, most, False)
    case = "unknown lengths at 10x"
    yield Line(f"wasted worker time, {case}, with clamp", (case,), of(case, wasted), PERCENT, 0.01, False, BOTH[1])


HOW_1 = """Work on time per second over capacity, both in cost; of what arrived from second 3 to 3 s before the end.
The wait is from arrival to start on a worker, of those that started, over the mean time that a request holds a slot.
Useful worker time is the share of all slot time that went into answers on time: where an answer may be cut, goodput
can exceed capacity, since a mix of cut answers is easier on the workers, and this cannot."""
HOW_2 = """Shares of the requests that were admitted. Dropped: admitted, never started. Missed: late, or given up at
the deadline, after a worker had begun. Policies that admit everything drop and miss what they should have refused.
Where a worker fails, what ran on it fails too; that is no estimate's fault, so those lines have no target."""
HOW_3 = "Slot time spent on requests that had no answer on time, of all slot time that was used."

ROWS = (
    Row(1, "Goodput under standing overload, with a short wait", HOW_1, tuple(_row_1())),
    row_2(MIXES),
    Row(3, "Workers do not work for nobody", HOW_3, tuple(_row_3())),
)
