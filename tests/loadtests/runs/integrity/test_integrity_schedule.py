"""The deck: sixty faults of every kind and every part, and a short run that meets every part."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from loadtests.faults.proxy.fault import read
from loadtests.runs.integrity.checker import GRACE_S, Trouble
from loadtests.runs.integrity.injection import NAMES, WIRE_LINES, Span, trouble_of
from loadtests.runs.integrity.play import DEADLINE_MS
from loadtests.runs.integrity.schedule import CLIENTS, HOLDS_S, PLANNED, ROUTER, TIMES, PlannedFault, What, deal


def test_sixty_faults_are_the_whole_deck_whatever_the_seed() -> None:
    assert len(PLANNED) == 60
    for seed in range(20):
        assert Counter(islice(deal(seed), 60)) == Counter(PLANNED)


def test_a_short_run_breaks_every_part() -> None:
    for seed in range(50):
        assert {card.part for card in islice(deal(seed), len(TIMES))} == set(TIMES)


def test_the_same_seed_deals_the_same_and_another_one_does_not() -> None:
    assert list(islice(deal(1), 150)) == list(islice(deal(1), 150))
    assert list(islice(deal(1), 60)) != list(islice(deal(2), 60))


def test_what_stands_still_stands_long_enough_to_make_whoever_only_waits_hang() -> None:
    assert set(HOLDS_S) == set(What)
    assert min(HOLDS_S[What.FREEZE], HOLDS_S[What.HOLD]) > DEADLINE_MS / 1000 + 2 * GRACE_S


def test_a_wire_understands_everything_that_it_will_be_told() -> None:
    assert set(WIRE_LINES) == set(What) - {What.KILL, What.FREEZE}
    for line in WIRE_LINES.values():
        read(line)


def test_what_has_no_wire_of_its_own_is_only_killed_and_frozen() -> None:
    assert set(TIMES[ROUTER]) <= {What.KILL, What.FREEZE}  # its wire is the clients'
    assert not set(TIMES[CLIENTS]) & {What.KILL, What.FREEZE}
    assert set(NAMES) | {"worker"} == set(TIMES)


@pytest.mark.parametrize(
    ("card", "trouble"),
    [
        (PlannedFault(ROUTER, What.KILL), Trouble(1, 2, wire=False, breaks=True, holds=True, kills=True)),
        (PlannedFault(ROUTER, What.FREEZE), Trouble(1, 2, wire=False, breaks=False, holds=True)),
        (PlannedFault(CLIENTS, What.RESET), Trouble(1, 2, wire=True, breaks=True)),
        (PlannedFault(CLIENTS, What.CUT), Trouble(1, 2, wire=True, breaks=True)),
        (PlannedFault(CLIENTS, What.SLOW), Trouble(1, 2, wire=True, breaks=False, delay_s=0.12)),
    ],
)
def test_clients_feel_of_a_fault_what_it_is(card: PlannedFault, trouble: Trouble) -> None:
    assert trouble_of(Span(card, card.part, 1, 2)) == trouble
