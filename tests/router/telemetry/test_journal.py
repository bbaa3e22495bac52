"""The journal: what was decided lately and who ended last, bounded, in order, and without what was said."""

from __future__ import annotations

import gc
import weakref

import pytest

from services.contracts.search import Passage
from services.core.outcome import Outcome
from services.router.parsing.parsed import Format, ParsedRequest
from services.router.rag.retrieval import Found
from services.router.request import InferenceRequest
from services.router.telemetry.journal import (
    KIND,
    LOOKING_S,
    MAX_PER_KIND,
    MAX_RECORDS,
    UNWATCHED_RECORDS,
    WHATS,
    Entry,
    Journal,
)  # fmt: skip
from services.router.tenancy.tenants import Tenant
from services.runtime.errors import Refused


def request(id: str = "r", at: float = 0.0, *, placed: bool = True, tenant: str = "ann") -> InferenceRequest:
    return InferenceRequest(id, tenant, at, at + 1.0, 10, 10, account=Tenant(tenant), admitted=placed, queue_depth=0)


def end(journal: Journal, of: InferenceRequest, outcome: Outcome = Outcome.SERVED, at: float = 1.0) -> None:
    of.outcome = outcome
    failure = None if outcome is Outcome.SERVED else Refused(outcome, "no", reason="deadline")
    journal.ended(of, failure, at)


def told(journal: Journal, since: int = 0, most: int = 40) -> list[tuple[str, str]]:
    return [(entry.request.id, entry.what) for entry in journal.since(since, most)[0]]


def test_every_outcome_has_a_name_among_the_decisions() -> None:
    assert set(KIND) == {None, *Outcome}
    assert set(KIND.values()) | {"degrade"} == set(WHATS)


def test_an_admitted_request_is_told_at_the_door_and_at_its_end_in_order() -> None:
    journal, one, two = Journal(), request("a"), request("b", 0.1)
    two.level = 2
    journal.admitted(one)
    journal.admitted(two)
    end(journal, one)
    end(journal, two, Outcome.DEADLINE_EXCEEDED)
    end(journal, request("c", placed=False), Outcome.DEADLINE_INFEASIBLE)
    assert told(journal) == [("a", "admit"), ("b", "degrade"), ("a", "served"), ("b", "late"), ("c", "refuse")]
    assert [entry.n for entry in journal.since(0, 40)[0]] == [1, 2, 3, 4, 5]


def test_whoever_yields_after_a_wait_in_line_has_expired_and_at_the_door_has_yielded() -> None:
    journal = Journal()
    end(journal, request("door", placed=False), Outcome.YIELD)
    end(journal, request("line"), Outcome.YIELD)
    started = request("worker")
    started.dispatched_at = 0.5
    end(journal, started, Outcome.YIELD)
    assert told(journal) == [("door", "yield"), ("line", "expire"), ("worker", "yield")]


def test_a_flood_of_refusals_does_not_push_out_what_is_rare() -> None:
    journal, rare = Journal(), request("rare")
    rare.level = 1
    journal.admitted(rare)
    end(journal, rare, Outcome.CLIENT_GONE)
    for number in range(1000):
        end(journal, request(f"refused-{number}", placed=False), Outcome.DEADLINE_INFEASIBLE)
    entries, left_out = journal.since(0, 10)
    assert {"degrade", "gone", "refuse"} == {entry.what for entry in entries}
    assert len(entries) == 10
    assert left_out == journal.decided - 10 == 992
    assert [entry.n for entry in entries] == sorted(entry.n for entry in entries)
    assert entries[-1].request.id == "refused-999"


def test_where_there_is_room_what_was_before_is_told_again_and_nothing_is_missing() -> None:
    journal = Journal()
    for number in range(6):
        end(journal, request(str(number), placed=False), Outcome.YIELD)
    entries, left_out = journal.since(4, 5)
    assert [entry.request.id for entry in entries] == ["1", "2", "3", "4", "5"]
    assert left_out == 0
    assert journal.since(6, 5)[1] == 0


def flood(journal: Journal, requests: int, at: float = 1.0) -> None:
    for number in range(requests):
        placed = request(f"p{number}")
        journal.admitted(placed)
        end(journal, placed, at=at)
        end(journal, request(f"r{number}", placed=False), Outcome.YIELD, at=at)


def test_what_is_kept_is_bounded_whatever_comes() -> None:
    journal = Journal()
    flood(journal, 500)
    assert repr(journal) == f"<Journal 1500 decided, 0 live, {2 * UNWATCHED_RECORDS} remembered>"
    assert len(journal.since(0, 10_000)[0]) == 3 * MAX_PER_KIND
    kept = 500 - UNWATCHED_RECORDS
    assert journal.find(f"p{kept}") is not None
    assert journal.find(f"r{kept}") is not None
    assert journal.find(f"p{kept - 1}") is None
    assert journal.find(f"r{kept - 1}") is None


def test_while_somebody_looks_more_is_remembered_and_afterwards_it_goes_little_by_little() -> None:
    journal = Journal()
    journal.looked(1.0)
    flood(journal, MAX_RECORDS + 500, at=1.0 + LOOKING_S)
    assert repr(journal).endswith(f"{2 * MAX_RECORDS} remembered>")
    assert journal.find("p500") is not None
    assert journal.find("p499") is None
    flood(journal, 100, at=2.0 + LOOKING_S)
    assert repr(journal).endswith(f"{2 * (MAX_RECORDS - 100)} remembered>"), "one more for each that comes"
    flood(journal, MAX_RECORDS, at=2.0 + LOOKING_S)
    assert repr(journal).endswith(f"{2 * UNWATCHED_RECORDS} remembered>")


def test_what_is_rare_is_found_as_long_as_it_is_told() -> None:
    journal, rare = Journal(), request("rare")
    journal.admitted(rare)
    end(journal, rare, Outcome.UPSTREAM_FAILED)
    flood(journal, MAX_RECORDS)
    assert ("rare", "failed") in told(journal, most=10_000)
    found = journal.find("rare")
    assert isinstance(found, Entry)
    assert found.request is rare


def test_a_request_is_found_while_it_lives_and_after_its_end_the_newest_of_its_name_first() -> None:
    journal, one, two = Journal(), request("same"), request("same", 5.0)
    journal.admitted(one)
    journal.admitted(two)
    end(journal, one)
    assert journal.find("same") is two
    end(journal, two, at=6.0)
    found = journal.find("same")
    assert isinstance(found, Entry)
    assert found.request is two
    end(journal, request("same", placed=False), Outcome.YIELD)
    found = journal.find("same")
    assert isinstance(found, Entry)
    assert found.what == "yield"
    assert journal.find("never") is None


def test_those_served_lately_are_told_newest_first_and_others_are_not_among_them() -> None:
    journal = Journal()
    for number, outcome in enumerate([Outcome.SERVED, Outcome.CLIENT_GONE, Outcome.SERVED, Outcome.SERVED]):
        end(journal, request(str(number)), outcome, at=float(number))
    assert [at for at, _ in journal.served_since(0.0, 10)[0]] == [3.0, 2.0]
    assert [at for at, _ in journal.served_since(-1.0, 10)[0]] == [3.0, 2.0, 0.0]
    assert [at for at, _ in journal.served_since(-1.0, 3)[0]] == [3.0, 2.0]


def test_those_served_are_told_together_with_the_time_of_which_none_is_missing() -> None:
    journal = Journal()
    for number in range(UNWATCHED_RECORDS):
        end(journal, request(str(number)), at=float(number))
    assert journal.served_since(-5.0, 1000)[1] == -5.0, "nobody has been forgotten"
    assert journal.served_since(-5.0, 10)[1] == UNWATCHED_RECORDS - 11, "the first that was not looked at"
    end(journal, request("more"), at=float(UNWATCHED_RECORDS))
    assert journal.served_since(-5.0, 1000)[1] == 0.0, "the first has been forgotten"
    assert journal.served_since(50.0, 1000)[1] == 50.0


def test_worker_time_is_that_of_all_who_reached_one() -> None:
    journal = Journal()
    for outcome in (Outcome.SERVED, Outcome.DEADLINE_EXCEEDED):
        held = request()
        held.dispatched_at = 0.25
        end(journal, held, outcome)
    end(journal, request("r"), Outcome.DEADLINE_EXPIRED)
    assert journal.worker_s == pytest.approx(1.5)


class Heavy(Exception):
    """Something that can be watched for its end."""


def test_what_was_said_is_not_kept() -> None:
    journal, of = Journal(), request()
    of.found = Found("db", [Passage("c", "d", 1, "sekrit", 0.1)], seconds=0.5)
    refusal = Refused(Outcome.DEADLINE_EXPIRED, "too late")
    refusal.__cause__ = cause = Heavy()
    kept = weakref.ref(cause)
    of.refusal = refusal
    of.parsed = ParsedRequest(Format.COMPLETIONS, None, "m", 9, stream=True, prompt="sekrit", body={"prompt": "sekrit"})
    journal.admitted(of)
    of.outcome = Outcome.DEADLINE_EXPIRED
    journal.ended(of, refusal, 1.0)
    del refusal, cause
    gc.collect()
    assert kept() is None
    found = journal.find("r")
    assert isinstance(found, Entry)
    assert found.message == "too late"
    assert found.request.found == Found("db", seconds=0.5)
    assert (found.request.parsed.prompt, found.request.parsed.body) == (None, None)
    assert found.request.parsed.stream
