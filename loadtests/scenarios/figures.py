"""The figures that a scenario file may bound, with their names on a page and their units.

Each stage uses those that it can measure. Shares and quotients are 0 to 1; a quotient may exceed 1.
"""

from __future__ import annotations

from loadtests.report.figure import Figure, at_least, at_most
from loadtests.scenarios.model import Must, StageName

FIGURES: dict[str, tuple[str, str]] = {
    "on_time": ("answered on time", "%"),
    "goodput": ("goodput / capacity", ""),
    "wait_p50": ("wait of the admitted, p50", "service times"),
    "wait_p95": ("wait of the admitted, p95", "service times"),
    "p95_ms": ("p95 of the admitted", "ms"),
    "p95_over_baseline": ("p95 of the admitted / the baseline's", ""),
    "answers_p95_ms": ("p95 of the answers", "ms"),
    "refused_p50_ms": ("refusals p50", "ms"),
    "refused_p99_ms": ("refusals p99", "ms"),
    "hinted": ("refusals that say when to come back", "%"),
    "in_vain": ("tokens written that were in no answer on time", "%"),
    "failed": ("failure rate", "%"),
    "back_after_s": ("nine tenths of the share on time are back after", "s"),
    "after_over_before": ("on time afterwards / before", ""),
    "with_passages": ("answers on time that were given passages", "%"),
    "honest_over_obeyed": ("on time of those that obey hints / where all do", ""),
    "worth_over_uncut": ("answers on time in worth / without degradation", ""),
    "dispatches": ("requests to workers, for each of a client's", ""),
    "p95_over_alone": ("p95 / alone", ""),
    "p95_less_alone_ms": ("p95 beyond alone", "ms"),
    "useful_time": ("useful worker time", "%"),
    "dropped": ("let in and dropped from the queue", "%"),
    "missed": ("let in and missed after using a worker", "%"),
    "late_answers": ("answers sent after their deadline", ""),
    "gap_s": ("gap of service, in work of all workers", "s"),
    "jain": ("Jain's index, worst 60 s", ""),
    "served_share": ("share of the service", "%"),
    "goodput_less_one_router": ("goodput / capacity, less one router's", ""),
    "p95_over_one_router": ("p95 of the admitted / one router's", ""),
    "over_slots": ("requests at a worker without a slot for them", ""),
    "gap_over_bound": ("gap of service / its bound", ""),
    "hints_admitted": ("first obeyed hints admitted", "%"),
}


def is_asked(must: Must, stage: StageName) -> bool:
    """Whether the bound applies to that stage."""
    return not must.stages or stage in must.stages


def judged(must: Must, value: float, note: str = "") -> Figure:
    """The figure with its bound. Raises KeyError for an unknown figure."""
    words, unit = FIGURES[must.figure]
    name = f"{must.of}: {words}" if must.of else words
    if must.at_least is not None:
        return at_least(name, value, must.at_least, unit, must.note or note)
    assert must.at_most is not None, "the model asks for one of the two"
    return at_most(name, value, must.at_most, unit, must.note or note)
