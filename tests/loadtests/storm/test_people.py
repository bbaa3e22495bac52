"""The crowd, in virtual time: how people wait, leave and come back, and what no crowd can pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from loadtests.storm.arrivals import Arrival
from loadtests.storm.door import Answer, Attempt, DoorLost
from loadtests.storm.ledger import Ledger
from loadtests.storm.people import AT_ONCE_S, Bounds, Crowd
from loadtests.storm.plan import Manners
from tests.virtual import run

SERVED = Answer(200)


def refusal(hint_s: float | None = None, *, retry: bool = True) -> Answer:
    return Answer(429, "yield", hint_s, retry)


@dataclass
class FakeDoor:
    """Answers after a time, as it is told."""

    takes_s: float = 0.5
    answer: Callable[[Attempt, float], Answer] = lambda attempt, now: SERVED
    asked: list[tuple[float, Attempt]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    left: int = 0
    closed: bool = False

    async def ask(self, attempt: Attempt) -> Answer:
        now = asyncio.get_running_loop().time()
        self.asked.append((now, attempt))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.under_way -= 1
        return self.answer(attempt, now)

    def close(self) -> None:
        self.closed = True


def played(door: FakeDoor, arrivals: list[Arrival], manners: Manners | None = None, **bounds: float) -> Ledger:
    """A whole run's ledger."""
    ledger = Ledger()

    async def main() -> None:
        crowd = Crowd(manners or Manners(), door, ledger, Bounds(**bounds))  # type: ignore[arg-type]
        await crowd.come(iter(arrivals))
        await crowd.settle(20.0)
        crowd.check()

    run(main())
    assert ledger.open == 0
    assert door.under_way == 0
    assert door.closed
    return ledger


def every(gap_s: float, count: int, tenant: str = "anna") -> list[Arrival]:
    return [Arrival(number * gap_s, tenant) for number in range(1, count + 1)]


def test_everybody_comes_at_their_time_whatever_became_of_those_before():
    door = FakeDoor(takes_s=3.0)
    played(door, every(0.1, 20))
    assert [at for at, _ in door.asked] == pytest.approx([one.at_s for one in every(0.1, 20)])


def test_an_answer_after_the_deadline_is_late_and_one_after_patience_is_not_waited_for():
    assert played(FakeDoor(takes_s=1.9), every(1, 3)).all.counts["on_time"] == 3
    assert played(FakeDoor(takes_s=2.5), every(1, 3)).all.counts["late"] == 3
    door = FakeDoor(takes_s=3.5)
    assert played(door, every(1, 3)).all.counts["gone"] == 3
    assert door.left == 3


def test_some_lose_patience_before_half_of_the_deadline():
    ledger = played(FakeDoor(takes_s=1.0), every(0.01, 400), Manners(leaving_share=0.3))
    assert 80 < ledger.all.counts["gone"] < 160
    assert ledger.all.counts["on_time"] == 400 - ledger.all.counts["gone"]


def test_who_is_refused_asks_again_at_once_as_often_as_it_may():
    door = FakeDoor(takes_s=0.1, answer=lambda attempt, now: refusal(5.0))
    ledger = played(door, [*every(1, 1), Arrival(9.0, "ben")], Manners(retries=3))
    assert [attempt.tried_before for _, attempt in door.asked if attempt.tenant == "anna"] == [0, 1, 2, 3]
    times = [at for at, attempt in door.asked if attempt.tenant == "anna"]
    assert all(0.1 <= later - sooner <= 0.1 + AT_ONCE_S for sooner, later in pairwise(times))
    assert (ledger.all.counts["sent"], ledger.refused["yield"], ledger.people) == (5, 5, (2, 0))


def test_who_obeys_comes_back_when_it_was_told_to_and_is_answered_once():
    door = FakeDoor(takes_s=0.1, answer=lambda attempt, now: SERVED if attempt.tried_before else refusal(5.0))
    ledger = played(door, [*every(1, 1), Arrival(10.0, "ben")], Manners(retries=3, obeys_hints=True))
    assert [at for at, attempt in door.asked if attempt.tenant == "anna"] == pytest.approx([1.0, 6.1])
    assert ledger.people == (2, 1)  # ben, too, was refused, and the run ended before he could come back


def test_who_obeys_and_is_told_not_to_come_back_does_not():
    door = FakeDoor(answer=lambda attempt, now: refusal(None, retry=False))
    assert played(door, every(1, 2), Manners(retries=3, obeys_hints=True)).all.counts["sent"] == 2


def test_who_waited_in_vain_asks_again_and_its_new_attempt_has_its_own_time():
    door = FakeDoor(takes_s=1.0, answer=lambda attempt, now: SERVED)
    door.takes_s = 2.5
    ledger = played(door, [*every(1, 1), Arrival(9.0, "ben")], Manners(patience_s=2.0, retries=1))
    assert [round(at, 1) for at, attempt in door.asked if attempt.tenant == "anna"] == [1.0, 3.0]
    assert ledger.all.counts["gone"] >= 2


def test_a_door_that_is_gone_is_a_failure_with_a_code_and_no_end_of_the_run():
    class Gone(FakeDoor):
        async def ask(self, attempt: Attempt) -> Answer:
            await super().ask(attempt)
            raise DoorLost("no_connection")

    ledger = played(Gone(takes_s=0.01), every(0.1, 50), Manners(retries=2))
    assert ledger.failed["no_connection"] == ledger.all.counts["sent"]
    assert ledger.people == (50, 0)


def test_no_more_are_sent_in_any_second_than_may_be():
    door = FakeDoor(takes_s=0.01, answer=lambda attempt, now: refusal())
    ledger = played(door, every(0.0005, 4000), Manners(retries=5), rate_per_s=100.0)
    times = [at for at, _ in door.asked]
    for second in range(3):
        assert sum(second <= at < second + 1 for at in times) <= 110  # the rate, and the burst of a tenth of a second
    assert ledger.all.counts["held_back"] > 3000
    assert ledger.all.counts["sent"] + ledger.all.counts["held_back"] >= 4000


def test_no_more_are_under_way_than_may_be():
    door = FakeDoor(takes_s=2.0)
    ledger = played(door, every(0.005, 400), connections=25)
    assert door.most_under_way == 25
    assert ledger.all.counts["held_back"] == 400 - ledger.all.counts["sent"]


def test_no_more_wait_to_come_back_than_may():
    door = FakeDoor(takes_s=0.001, answer=lambda attempt, now: refusal(30.0))
    ledger = played(door, [*every(0.01, 200), Arrival(40.0, "ben")], Manners(retries=1, obeys_hints=True), returning=10)
    assert ledger.all.counts["sent"] == 201 + 10


def test_all_leave_at_once_when_they_are_told_to():
    door, ledger = FakeDoor(takes_s=2.0), Ledger()

    async def main() -> float:
        crowd = Crowd(Manners(), door, ledger, Bounds())
        coming = asyncio.ensure_future(crowd.come(iter(every(0.01, 10_000))))
        await asyncio.sleep(1.0)
        coming.cancel()
        began = asyncio.get_running_loop().time()
        await crowd.leave()
        return asyncio.get_running_loop().time() - began

    assert run(main()) == 0.0
    assert ledger.open == 0
    assert ledger.all.counts["gone"] == ledger.all.counts["sent"] == door.left > 90


def test_a_fault_of_the_crowd_itself_ends_the_run_loudly():
    def broken(attempt: Attempt, now: float) -> Answer:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        played(FakeDoor(answer=broken), every(1, 1))
