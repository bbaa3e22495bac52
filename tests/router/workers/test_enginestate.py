"""What an engine's own report does to its worker: memory, look-ahead, the learned limit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.upstreams.enginepage import EngineReport
from services.router.workers.enginestate import LOST_SHARE, STRAINED_KV_SHARE, ReportedState
from services.router.workers.fleet import Fleet
from services.router.workers.worker import AHEAD, FREE, FULL, Worker
from tests.router.fleetrig import asked, fleet_of, probe, worker


def said(running: int = 0, waiting: int = 0, *, block_tokens: int = 0, **fields: Any) -> EngineReport:
    return EngineReport("vllm", running, waiting, block_tokens=block_tokens, **fields)


def tell(fleet: Fleet, at: Worker, report: EngineReport | None, slots: int = 0) -> None:
    fleet.learn(at, probe(slots=slots, report=report))


# ---- memory


def test_no_more_is_sent_than_fits_into_the_engines_memory() -> None:
    one = worker("one", slots=8)
    fleet = fleet_of(one)
    tell(fleet, one, said(kv_tokens=100))
    taken = [fleet.take(asked(prompt=20, answer=20)) for _ in range(3)]
    assert taken == [one, one, None]
    assert not fleet.fits(asked(prompt=20, answer=20))
    assert fleet.fits(asked(prompt=10, answer=10))


def test_without_a_report_and_after_the_last_one_memory_is_unknown() -> None:
    one = worker("one", slots=8)
    fleet = fleet_of(one)
    tell(fleet, one, said(kv_tokens=10))
    assert one.kv_tokens == 10
    tell(fleet, one, None)
    assert one.kv_tokens is None
    assert fleet.take(asked(prompt=200, answer=200)) is one


def test_what_others_use_counts_from_the_second_report_on() -> None:
    one = worker("one", slots=8)
    fleet = fleet_of(one)
    tell(fleet, one, said(kv_tokens=1000, kv_share=0.5))
    assert one.kv_tokens == 1000  # perhaps older than the end of a request
    tell(fleet, one, said(kv_tokens=1000, kv_share=0.4))
    assert one.kv_tokens == 600
    tell(fleet, one, said(kv_tokens=1000, kv_share=0.0))
    assert one.kv_tokens == 1000


def test_requests_that_hold_whole_blocks_fit_all_the_same() -> None:
    one = worker("one", slots=3)
    fleet = fleet_of(one)
    for _ in range(2):
        tell(fleet, one, said(kv_tokens=20 * 128, block_tokens=128, kv_share=0.0))
        assert one.kv_tokens == (20 - 3 - 1) * 128
    tokens, blocks = 0, 1  # vLLM keeps one for itself
    while (request := asked(prompt=100, answer=585)) and fleet.take(request):
        tokens += 685
        blocks += -(-685 // 128)
    assert tokens > 0
    assert blocks <= 20


def test_what_the_worker_holds_is_not_others() -> None:
    one = worker("one", slots=8)
    fleet = fleet_of(one)
    fleet.take(asked(prompt=300, answer=200))
    for _ in range(3):
        tell(fleet, one, said(kv_tokens=1000, kv_share=0.45))
        assert one.kv_tokens == 1000


def test_a_report_that_is_always_full_does_not_stop_a_worker() -> None:
    one = worker("one", slots=8)
    fleet = fleet_of(one)
    for _ in range(5):
        tell(fleet, one, said(waiting=10**9, kv_tokens=1000, kv_share=1.0, preemptions=10**9))
    assert one.kv_tokens == 1000 - int(1000 * LOST_SHARE)
    assert fleet.take(asked(prompt=100, answer=100)) is one
    assert fleet.fits(asked(prompt=500, answer=400)), "above what is left: the engine queues it"


REPORTS = st.builds(
    said, st.integers(0, 2**40), st.integers(0, 2**40),
    kv_share=st.none() | st.floats(0, 1), kv_tokens=st.none() | st.integers(1, 2**40),
    preemptions=st.none() | st.integers(0, 2**40), block_tokens=st.integers(1, 2**50),
)  # fmt: skip


@given(st.lists(st.tuples(st.none() | REPORTS, st.integers(0, 2**41), st.integers(0, 300)), max_size=20))
def test_whatever_is_reported_some_memory_stays_and_never_more_than_is_said(
    history: list[tuple[EngineReport | None, int, int]],
) -> None:
    state = ReportedState()
    for report, held, slots in history:
        state.learn(report, held, slots + 1, slots)
        size = None if report is None else report.kv_tokens
        if size is None:
            assert state.kv_tokens is None
        else:
            assert state.kv_tokens is not None
            assert max(1, size - int(size * LOST_SHARE)) <= state.kv_tokens <= size
        if report is None:
            assert not state.strained


# ---- look-ahead


CALM = said(running=1, waiting=0, kv_share=0.5, preemptions=3)


@pytest.mark.parametrize(
    "report",
    [
        said(running=1, waiting=1, kv_share=0.5, preemptions=3),
        said(running=1, waiting=0, kv_share=STRAINED_KV_SHARE, preemptions=3),
        said(running=1, waiting=0, kv_share=0.5, preemptions=4),
    ],
    ids=["queue", "memory", "preempted"],
)
@pytest.mark.parametrize("lookahead", [1, "auto"])
def test_nothing_is_sent_ahead_to_a_strained_engine(report: EngineReport, lookahead: Any) -> None:
    one = worker("one", slots=1, lookahead=lookahead)
    fleet = fleet_of(one)
    first = asked()
    first.pool, first.ends_at = "m", 1.0
    assert fleet.take(first) is one
    tell(fleet, one, CALM)
    fleet.look_ahead(2.0, "m", 0.5)
    assert one.availability is AHEAD
    tell(fleet, one, report)
    assert one.availability is FULL
    fleet.look_ahead(3.0, "m", 0.5)
    assert one.availability is FULL
    assert fleet.take(asked()) is None
    fleet.give_back(one, first)
    assert one.availability is FREE, "strain stops look-ahead only"
    assert fleet.take(asked()) is one
    tell(fleet, one, CALM)
    if lookahead == 1:
        assert one.availability is AHEAD


def test_an_end_that_is_due_at_a_strained_engine_is_put_aside() -> None:
    one = worker("one", slots=1, lookahead="auto")
    fleet = fleet_of(one)
    first = asked()
    first.pool, first.ends_at = "m", 1.0
    assert fleet.take(first) is one
    tell(fleet, one, said(running=1, waiting=1))
    assert fleet.look_ahead(2.0, "m", 0.5) > 2.0, "else the dispatcher would look again at once, for ever"
    assert not one.ahead_open


def test_a_request_that_was_sent_ahead_is_no_strain() -> None:
    one = worker("one", slots=1, lookahead=1)
    fleet = fleet_of(one)
    assert fleet.take(asked()) is one
    assert fleet.take(asked()) is one
    tell(fleet, one, said(running=1, waiting=1))
    assert not one.strained
    tell(fleet, one, said(running=1, waiting=2))
    assert one.strained


def test_an_engine_that_restarted_counts_preemptions_anew() -> None:
    one = worker("one", slots=1, lookahead=1)
    fleet = fleet_of(one)
    for count, strained in ((9, False), (0, False), (1, True), (1, False)):
        tell(fleet, one, said(preemptions=count))
        assert one.strained is strained


# ---- `slots: auto`


def test_a_batch_size_that_the_engine_says_is_used_from_the_first_request() -> None:
    one = worker("one", slots="auto")
    fleet = fleet_of(one)
    assert one.slots == 1
    tell(fleet, one, said(slots=48), slots=48)
    assert (one.slots, one.limit) == (48, None)
    assert [fleet.take(asked()) for _ in range(3)] == [one] * 3
    tell(fleet, one, None)
    assert one.slots == 48
    one.adopt(one.spec, one.upstream)
    assert (one.slots, one.limit) == (48, None)


def test_a_batch_size_is_never_above_all_requests_in_flight() -> None:
    one = worker("one", slots="auto", most=8)
    tell(fleet_of(one), one, said(slots=4097), slots=4097)
    assert one.slots == 8


def test_a_given_number_of_slots_stays() -> None:
    one = worker("one", slots=4)
    tell(fleet_of(one), one, said(slots=48), slots=48)
    assert one.slots == 4


def test_a_queue_in_the_engine_lowers_a_learned_limit_once_a_round() -> None:
    one = worker("one", slots="auto")
    fleet = fleet_of(one)
    assert one.limit is not None
    one.limit._move(40.0)
    one.slots = 40
    tell(fleet, one, said(running=32, waiting=8))
    assert one.slots == 36
    tell(fleet, one, said(running=32, waiting=4))
    assert one.slots == 36
    tell(fleet, one, said(running=32, waiting=0))
    assert one.slots == 36
