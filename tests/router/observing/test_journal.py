"""The journal: what was decided lately and who ended last, bounded, in order, and without what was said."""

from __future__ import annotations

import gc
import weakref

import pytest

from services.contracts.search import Passage
from services.core.outcome import Outcome
from services.router.observing.journal import (
    KIND,
    LOOKING_S,
    MOST_LIVES,
    MOST_OF_A_KIND,
    UNSEEN_LIVES,
    WHATS,
    Entry,
    Journal,
)  # fmt: skip
from services.router.observing.life import Life
from services.router.passages.retrieval import Found
from services.router.tenancy.tenants import Tenant
from services.router.workers.turn import Turn
from services.runtime.errors import Refused


def life(at: float = 0.0, *, placed: bool = True, tenant: str = "ann") -> Life:
    turn = Turn("r", tenant, at, at + 1.0, 10, 10)
    return Life(at, Tenant(tenant), deadline_ms=1000.0, turn=turn if placed else None, weighed=turn)


def end(journal: Journal, id: str, of: Life, outcome: Outcome = Outcome.SERVED, at: float = 1.0) -> None:
    failure = None if outcome is Outcome.SERVED else Refused(outcome, "no", reason="deadline")
    journal.ended(id, of, outcome, failure, at)


def told(journal: Journal, since: int = 0, most: int = 40) -> list[tuple[str, str]]:
    return [(entry.id, entry.what) for entry in journal.since(since, most)[0]]


def test_every_outcome_has_a_name_among_the_decisions() -> None:
    assert set(KIND) == {None, *Outcome}
    assert set(KIND.values()) | {"degrade"} == set(WHATS)


def test_an_admitted_request_is_told_at_the_door_and_at_its_end_in_order() -> None:
    journal, one, two = Journal(), life(0.0), life(0.1)
    journal.admitted("a", one, 0)
    journal.admitted("b", two, 2)
    end(journal, "a", one)
    end(journal, "b", two, Outcome.DEADLINE_EXCEEDED)
    end(journal, "c", life(placed=False), Outcome.DEADLINE_INFEASIBLE)
    assert told(journal) == [("a", "admit"), ("b", "degrade"), ("a", "served"), ("b", "late"), ("c", "refuse")]
    assert [entry.n for entry in journal.since(0, 40)[0]] == [1, 2, 3, 4, 5]


def test_whoever_yields_after_a_wait_in_line_has_expired_and_at_the_door_has_yielded() -> None:
    journal = Journal()
    end(journal, "door", life(placed=False), Outcome.YIELD)
    end(journal, "line", life(), Outcome.YIELD)
    started = life()
    started.dispatched_at = 0.5
    end(journal, "worker", started, Outcome.YIELD)
    assert told(journal) == [("door", "yield"), ("line", "expire"), ("worker", "yield")]


def test_a_flood_of_refusals_does_not_push_out_what_is_rare() -> None:
    journal, rare = Journal(), life()
    journal.admitted("rare", rare, 1)
    end(journal, "rare", rare, Outcome.CLIENT_GONE)
    for number in range(1000):
        end(journal, f"refused-{number}", life(placed=False), Outcome.DEADLINE_INFEASIBLE)
    entries, left_out = journal.since(0, 10)
    assert {"degrade", "gone", "refuse"} == {entry.what for entry in entries}
    assert len(entries) == 10
    assert left_out == journal.decided - 10 == 992
    assert [entry.n for entry in entries] == sorted(entry.n for entry in entries)
    assert entries[-1].id == "refused-999"


def test_where_there_is_room_what_was_before_is_told_again_and_nothing_is_missing() -> None:
    journal = Journal()
    for number in range(6):
        end(journal, str(number), life(placed=False), Outcome.YIELD)
    entries, left_out = journal.since(4, 5)
    assert [entry.id for entry in entries] == ["1", "2", "3", "4", "5"]
    assert left_out == 0
    assert journal.since(6, 5)[1] == 0


def flood(journal: Journal, requests: int, at: float = 1.0) -> None:
    for number in range(requests):
        placed = life()
        journal.admitted(f"p{number}", placed, 0)
        end(journal, f"p{number}", placed, at=at)
        end(journal, f"r{number}", life(placed=False), Outcome.YIELD, at=at)


def test_what_is_kept_is_bounded_whatever_comes() -> None:
    journal = Journal()
    flood(journal, 500)
    assert repr(journal) == f"<Journal 1500 decided, 0 live, {2 * UNSEEN_LIVES} remembered>"
    assert len(journal.since(0, 10_000)[0]) == 3 * MOST_OF_A_KIND
    kept = 500 - UNSEEN_LIVES
    assert journal.find(f"p{kept}") is not None
    assert journal.find(f"r{kept}") is not None
    assert journal.find(f"p{kept - 1}") is None
    assert journal.find(f"r{kept - 1}") is None


def test_while_somebody_looks_more_is_remembered_and_afterwards_it_goes_little_by_little() -> None:
    journal = Journal()
    journal.looked(1.0)
    flood(journal, MOST_LIVES + 500, at=1.0 + LOOKING_S)
    assert repr(journal).endswith(f"{2 * MOST_LIVES} remembered>")
    assert journal.find("p500") is not None
    assert journal.find("p499") is None
    flood(journal, 100, at=2.0 + LOOKING_S)
    assert repr(journal).endswith(f"{2 * (MOST_LIVES - 100)} remembered>"), "one more for each that comes"
    flood(journal, MOST_LIVES, at=2.0 + LOOKING_S)
    assert repr(journal).endswith(f"{2 * UNSEEN_LIVES} remembered>")


def test_what_is_rare_is_found_as_long_as_it_is_told() -> None:
    journal, rare = Journal(), life()
    journal.admitted("rare", rare, 0)
    end(journal, "rare", rare, Outcome.UPSTREAM_FAILED)
    flood(journal, MOST_LIVES)
    assert ("rare", "failed") in told(journal, most=10_000)
    found = journal.find("rare")
    assert isinstance(found, Entry)
    assert found.life is rare


def test_a_request_is_found_while_it_lives_and_after_its_end_the_newest_of_its_name_first() -> None:
    journal, one, two = Journal(), life(0.0), life(5.0)
    journal.admitted("same", one, 0)
    journal.admitted("same", two, 0)
    end(journal, "same", one)
    assert journal.find("same") is two
    end(journal, "same", two, at=6.0)
    found = journal.find("same")
    assert isinstance(found, Entry)
    assert found.life is two
    end(journal, "same", life(placed=False), Outcome.YIELD)
    found = journal.find("same")
    assert isinstance(found, Entry)
    assert found.what == "yield"
    assert journal.find("never") is None


def test_those_served_lately_are_told_newest_first_and_others_are_not_among_them() -> None:
    journal = Journal()
    for number, outcome in enumerate([Outcome.SERVED, Outcome.CLIENT_GONE, Outcome.SERVED, Outcome.SERVED]):
        end(journal, str(number), life(), outcome, at=float(number))
    assert [at for at, _ in journal.served_since(0.0, 10)[0]] == [3.0, 2.0]
    assert [at for at, _ in journal.served_since(-1.0, 10)[0]] == [3.0, 2.0, 0.0]
    assert [at for at, _ in journal.served_since(-1.0, 3)[0]] == [3.0, 2.0]


def test_those_served_are_told_together_with_the_time_of_which_none_is_missing() -> None:
    journal = Journal()
    for number in range(UNSEEN_LIVES):
        end(journal, str(number), life(), at=float(number))
    assert journal.served_since(-5.0, 1000)[1] == -5.0, "nobody has been forgotten"
    assert journal.served_since(-5.0, 10)[1] == UNSEEN_LIVES - 11, "the first that was not looked at"
    end(journal, "more", life(), at=float(UNSEEN_LIVES))
    assert journal.served_since(-5.0, 1000)[1] == 0.0, "the first has been forgotten"
    assert journal.served_since(50.0, 1000)[1] == 50.0


def test_worker_time_is_that_of_all_who_reached_one() -> None:
    journal = Journal()
    for outcome in (Outcome.SERVED, Outcome.DEADLINE_EXCEEDED):
        held = life()
        held.dispatched_at = 0.25
        end(journal, "r", held, outcome)
    end(journal, "r", life(), Outcome.DEADLINE_EXPIRED)
    assert journal.worker_s == pytest.approx(1.5)


class Heavy(Exception):
    """Something that can be watched for its end."""


def test_what_was_said_is_not_kept() -> None:
    journal, of = Journal(), life()
    of.found = Found("db", [Passage("c", "d", 1, "sekrit", 0.1)], seconds=0.5)
    refusal = Refused(Outcome.DEADLINE_EXPIRED, "too late")
    refusal.__cause__ = cause = Heavy()
    kept = weakref.ref(cause)
    assert of.turn is not None
    of.turn.refusal = refusal
    journal.admitted("r", of, 0)
    journal.ended("r", of, Outcome.DEADLINE_EXPIRED, refusal, 1.0)
    del refusal, cause
    gc.collect()
    assert kept() is None
    found = journal.find("r")
    assert isinstance(found, Entry)
    assert found.message == "too late"
    assert found.life.found == Found("db", seconds=0.5)
