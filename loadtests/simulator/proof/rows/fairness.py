"""Row 4: how far two tenants that both have work waiting can drift apart in service."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.simulator.proof.line import COUNT, Line, Row, of
from loadtests.simulator.proof.observe import Seen

CASES = ("long against short", "long against short, weights 3 and 1", "long prompts against long answers")


def to_own_bound(seen: Seen) -> float | None:
    """Gap over Q + (Cmax + I_f) / w_f + (Cmax + I_g) / w_g."""
    fairness = seen.report.fairness
    if fairness.gap_cost is None or not seen.quantum:
        return None
    if fairness.gap_pair is None:
        return 0.0
    weights = {tenant.name: tenant.weight for tenant in seen.report.tenants}
    bound = seen.quantum + sum(
        (fairness.largest_cost + seen.inflight.get(name, 0.0)) / weights[name] for name in fairness.gap_pair
    )
    return fairness.gap_cost / bound


def to_bound_of_vtc(seen: Seen) -> float | None:
    """Gap over 2 * max(w_p * L_input, w_q * M), M being all slots' tokens with the longest answers allowed."""
    prompt = seen.weights.cost(seen.longest_prompt_tokens, 0)
    batch = seen.weights.cost(0, seen.most_tokens * seen.report.capacity.slots)
    gap = seen.report.fairness.gap_cost
    return None if gap is None else gap / (2 * max(prompt, batch))


def gap_s(seen: Seen) -> float | None:
    gap = seen.report.fairness.gap_cost
    return None if gap is None else gap / seen.report.capacity.cost_per_s


def jain(seen: Seen) -> float | None:
    return seen.report.fairness.jain_least


def _lines() -> Iterator[Line]:
    for case in CASES:
        yield Line(f"gap / its bound, {case}", (case,), of(case, to_own_bound), target=1.0, at_least=False)
    for case in CASES:
        yield Line(f"gap / VTC's bound, {case}", (case,), of(case, to_bound_of_vtc), target=0.25, at_least=False)
    for case in CASES:
        yield Line(f"gap in seconds of all capacity, {case}", (case,), of(case, gap_s), COUNT, at_least=False)
    for case in (*CASES, "300 tenants at 10x, for a minute", "unknown lengths at 10x"):
        yield Line(f"Jain's index, worst 60 s, {case}", (case,), of(case, jain), target=0.99)


HOW = """The gap is the most by which the service of two tenants (divided by weight) drifted apart over any interval
in which both had work waiting. Its bound is Q + (Cmax + I_f)/w_f + (Cmax + I_g)/w_g: the largest quantum that was
used, the largest request that was served, and the most that each tenant had in flight, priced as if every answer took
all the tokens it was allowed. VTC's bound is 2 max(w_p L_input, w_q M) with M = slots times the longest answer allowed.
Jain's index is of service over the max-min fair share of what was served, in each 60 s (or the run, if shorter)."""

ROWS = (Row(4, "Fair by work, whatever the lengths", HOW, tuple(_lines())),)
