"""Row 5: what small tenants notice of a neighbour that asks for far more than there is."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.simulator.proof.line import PERCENT, SECONDS, Line, Look, Read, Row, of
from loadtests.simulator.proof.observe import Seen

GROUP = "small"
EQUAL, EQUAL_SOLO = "neighbour of equal size at 50x", "no neighbour"
BIG, BIG_SOLO = "neighbour ten times bigger at 10x", "no big neighbour"
BIG_SERVICE_S = 0.8
"""How long one request of the big neighbour holds a slot."""


def victim_p95(seen: Seen) -> float | None:
    return seen.latency_p95_s.get(GROUP)


def success(seen: Seen) -> float:
    """Of what the victims asked for, the share that was on time."""
    victims = [tenant.ledger for tenant in seen.report.tenants if tenant.name.startswith(GROUP)]
    return sum(ledger.on_time for ledger in victims) / sum(ledger.distinct for ledger in victims)


def inflation(case: str, solo: str) -> Read:
    """p95 beside the neighbour over p95 alone, under the same policy."""

    def figure(look: Look) -> float | None:
        beside, alone = _p95_of(look(case)), _p95_of(look(solo))
        return beside / alone if beside is not None and alone else None

    return figure


def excess_s(look: Look) -> float | None:
    """p95 beside a big neighbour less p95 alone, less one service of the neighbour."""
    beside, alone = _p95_of(look(BIG)), _p95_of(look(BIG_SOLO))
    return None if beside is None or alone is None else beside - alone - BIG_SERVICE_S


def _p95_of(seen: Seen | None) -> float | None:
    return victim_p95(seen) if seen else None


def _lines() -> Iterator[Line]:
    both, both_big = (EQUAL, EQUAL_SOLO), (BIG, BIG_SOLO)
    yield Line(f"victims' p95 / alone, {EQUAL}", both, inflation(*both), target=1.3, at_least=False)
    yield Line(f"victims on time, {EQUAL}", (EQUAL,), of(EQUAL, success), PERCENT, 0.99)
    yield Line(f"victims' p95 less alone less one big service, {BIG}", both_big, excess_s, SECONDS, 0.0, False)
    yield Line(f"victims on time, {BIG}", (BIG,), of(BIG, success), PERCENT, 0.99)
    for case in (*both, *both_big):
        yield Line(f"victims' p95, {case}", (case,), of(case, victim_p95), SECONDS, at_least=False)


HOW = """Seven victims at 5 % of capacity each, services of 80 ms, deadlines of 1 s, 8 slots (16 beside the
bigger neighbour); p95 of the latency of
their answers, all victims together. Alone: the same run without the neighbour, under the same policy. Policies that
answer hardly any victim have a p95 of the few that were answered: look at the share on time. The bigger neighbour's
requests hold a slot for 800 ms."""

ROWS = (Row(5, "Small tenants beside a flood", HOW, tuple(_lines())),)
