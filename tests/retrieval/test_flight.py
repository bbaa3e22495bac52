"""Single flight, in virtual time: one run for many, and nobody's end is anybody else's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import operator
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.retrieval.deadline import DeadlineExceeded
from services.retrieval.flight import Flights, WaiterTimedOut
from tests.virtual import run

WORK_S = 1.0


class Work:
    """Counts its runs; takes `WORK_S`, then answers with the number of the run, or fails."""

    def __init__(self, *, fails: Exception | None = None, clean_up_s: float = 0.0) -> None:
        self.began = self.ended = self.cancelled = 0
        self.fails = fails
        self.clean_up_s = clean_up_s

    async def __call__(self) -> int:
        self.began += 1
        number = self.began
        try:
            await asyncio.sleep(WORK_S)
        except asyncio.CancelledError:
            self.cancelled += 1
            await asyncio.sleep(self.clean_up_s)
            raise
        finally:
            self.ended += 1
        if self.fails is not None:
            raise self.fails
        return number


Scenario = Callable[[Flights[int]], Awaitable[None]]


def fly(scenario: Scenario, *, max_shared: int = 100, **options: Any) -> None:
    """Run it; afterwards nothing may be left: no task, no key, no exception that nobody read."""
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        flights = Flights[int](max_shared=max_shared, **options)
        await scenario(flights)
        await asyncio.sleep(10 * WORK_S)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (flights.shared, flights.running) == (0, 0)
        gc.collect()

    run(main())
    assert complaints == []


def start(*waiters: Awaitable[int]) -> list[asyncio.Task[int]]:
    return [asyncio.ensure_future(waiter) for waiter in waiters]


async def ends(*tasks: asyncio.Task[int]) -> list[int | BaseException]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_a_thousand_equal_questions_are_one_run() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        answers = await ends(*start(*(flights.join("key", work) for _ in range(1000))))
        assert (answers, work.began) == ([1] * 1000, 1)

    fly(scenario)


def test_different_questions_are_runs_of_their_own() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        answers = await ends(*start(*(flights.join(key, work) for key in "aabbc")))
        assert answers == [1, 1, 2, 2, 3]

    fly(scenario)


def test_the_next_after_the_end_starts_anew() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        assert [await flights.join("key", work), await flights.join("key", work)] == [1, 2]

    fly(scenario)


@pytest.mark.parametrize("leaver", range(3))
def test_whoever_leaves_even_the_first_leaves_alone(leaver: int) -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        tasks = start(*(flights.join("key", work) for _ in range(3)))
        await asyncio.sleep(WORK_S / 2)
        tasks[leaver].cancel()
        answers = await ends(*tasks)
        assert isinstance(answers.pop(leaver), asyncio.CancelledError)
        assert (answers, work.began, work.cancelled) == ([1, 1], 1, 0)

    fly(scenario)


def test_when_the_last_has_gone_the_work_is_cancelled_and_not_before() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        tasks = start(*(flights.join("key", work) for _ in range(3)))
        for left, task in enumerate(tasks, start=1):
            await asyncio.sleep(WORK_S / 10)
            task.cancel()
            await ends(task)
            await asyncio.sleep(0)
            assert work.cancelled == (1 if left == len(tasks) else 0)

    fly(scenario)


def test_who_asks_while_cut_off_work_cleans_up_starts_anew_and_waits_for_none_of_it() -> None:
    async def scenario(flights: Flights[int]) -> None:
        loop, work = asyncio.get_running_loop(), Work(clean_up_s=5.0)
        with pytest.raises(DeadlineExceeded):
            await flights.join("key", work, deadline=loop.time() + 0.1)
        assert loop.time() == pytest.approx(0.1)
        assert await flights.join("key", work) == 2
        assert loop.time() == pytest.approx(0.1 + WORK_S)
        assert (work.cancelled, work.ended) == (1, 1), "the first is still cleaning up"

    fly(scenario)


def test_cut_off_work_that_ends_later_does_not_take_its_successor_with_it() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work(clean_up_s=WORK_S / 2)
        with pytest.raises(DeadlineExceeded):
            await flights.join("key", work, deadline=0.1)
        second = start(flights.join("key", work))
        await asyncio.sleep(WORK_S * 0.9)
        assert work.ended == 1
        assert await ends(*second, *start(flights.join("key", work))) == [2, 2]

    fly(scenario)


def test_a_failure_reaches_those_that_wait_and_the_next_asks_anew() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work(fails=OSError("gone"))
        answers = await ends(*start(*(flights.join("key", work) for _ in range(5))))
        assert [str(answer) for answer in answers] == ["gone"] * 5
        work.fails = None
        assert await flights.join("key", work) == 2

    fly(scenario)


def test_everyone_keeps_a_deadline_of_their_own() -> None:
    async def scenario(flights: Flights[int]) -> None:
        loop, work = asyncio.get_running_loop(), Work()

        async def ask(deadline: float | None) -> tuple[int | None, float]:
            try:
                answer = await flights.join("key", work, deadline=deadline)
            except DeadlineExceeded:
                return None, loop.time()
            return answer, loop.time()

        seen = await asyncio.gather(*(ask(deadline) for deadline in (0.25, 0.5, 2.0, None)))
        assert seen == [(None, 0.25), (None, 0.5), (1, WORK_S), (1, WORK_S)]
        assert work.began == 1

    fly(scenario)


def test_a_deadline_that_has_passed_starts_nothing() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        with pytest.raises(DeadlineExceeded):
            await flights.join("key", work, deadline=0.0)
        assert work.began == 0

    fly(scenario)


def test_work_that_something_else_cuts_off_does_not_look_like_the_waiters_own_end() -> None:
    async def scenario(flights: Flights[int]) -> None:
        async def cut_off() -> int:
            await asyncio.sleep(WORK_S)
            raise asyncio.CancelledError

        answers = await ends(*start(*(flights.join("key", cut_off) for _ in range(3))))
        assert [type(answer) for answer in answers] == [WaiterTimedOut] * 3

    fly(scenario)


def test_a_failure_at_the_very_moment_its_only_waiter_leaves_is_not_reported_as_forgotten() -> None:
    async def scenario(flights: Flights[int]) -> None:
        ready = asyncio.Event()

        async def fail() -> int:
            await ready.wait()
            raise OSError("gone")

        (task,) = start(flights.join("key", fail))
        await asyncio.sleep(WORK_S)
        ready.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await ends(task)

    fly(scenario)


def test_whoever_asks_for_less_joins_more_and_whoever_asks_for_more_does_not_join_less() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        asked = [2, 1, 3, 2, 3, 1, 4]
        tasks = start(*(flights.join("key", work, params=params) for params in asked))
        await asyncio.sleep(WORK_S / 2)
        assert flights.shared == 3
        assert await ends(*tasks) == [1, 1, 2, 1, 2, 1, 3]

    fly(scenario, covers=operator.ge)


def test_the_end_of_one_piece_of_work_leaves_the_others_of_its_key() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        less = start(flights.join("key", work, params=1))
        await asyncio.sleep(WORK_S / 2)
        more = start(flights.join("key", work, params=2))
        assert await ends(*less) == [1]
        assert await ends(*more, *start(flights.join("key", work, params=1))) == [2, 2]

    fly(scenario, covers=operator.ge)


def test_whoever_is_left_behind_learns_of_what() -> None:
    async def scenario(flights: Flights[int]) -> None:
        patient = start(flights.join("key", Work(), context="the first"))
        await asyncio.sleep(0)
        with pytest.raises(WaiterTimedOut) as left:
            await flights.join("key", Work(), context="the second", deadline=WORK_S / 2)
        assert left.value.context == "the first"
        assert await ends(*patient) == [1]

    fly(scenario)


def test_what_is_shared_is_bounded_and_beyond_them_work_is_run_unshared() -> None:
    async def scenario(flights: Flights[int]) -> None:
        work = Work()
        tasks = start(*(flights.join(key, work) for key in ("a", "b", "c", "c", "a")))
        await asyncio.sleep(WORK_S / 2)
        assert (flights.shared, flights.running) == (2, 4)
        assert await ends(*tasks) == [1, 2, 3, 4, 1]

    fly(scenario, max_shared=2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=12),
    st.booleans(),
)
def test_whatever_the_order_of_coming_and_going_no_two_runs_of_a_key_serve_at_once_and_nothing_is_left(
    visits: list[tuple[str, float, float]], failing: bool
) -> None:
    """Each visitor comes, waits at most its patience, and goes; late ones are cancelled from outside."""

    async def scenario(flights: Flights[int]) -> None:
        runs: dict[str, list[asyncio.Task[Any]]] = {"a": [], "b": []}

        async def work(key: str) -> int:
            assert all(run.done() or run.cancelling() for run in runs[key])
            task = asyncio.current_task()
            assert task is not None
            runs[key].append(task)
            await asyncio.sleep(WORK_S)
            if failing:
                raise OSError
            return 1

        async def visit(key: str, at_s: float, client_timeout_s: float) -> None:
            await asyncio.sleep(at_s)
            deadline = asyncio.get_running_loop().time() + client_timeout_s
            began = asyncio.get_running_loop().time()
            with contextlib.suppress(DeadlineExceeded, OSError):
                await flights.join(key, lambda: work(key), deadline=deadline)
            assert asyncio.get_running_loop().time() - began <= client_timeout_s + 1e-9

        tasks = [asyncio.ensure_future(visit(*each)) for each in visits]
        await asyncio.sleep(2.0)
        for task in tasks[::3]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(answer is None or isinstance(answer, asyncio.CancelledError) for answer in answers)

    fly(scenario)


def test_those_who_wait_are_told_in_the_order_in_which_they_came() -> None:
    many = 200
    told: list[int] = []

    async def main() -> None:
        flights: Flights[str] = Flights(max_shared=1)

        async def work() -> str:
            await asyncio.sleep(1.0)
            return "done"

        async def ask(number: int) -> None:
            await flights.join("key", work)
            told.append(number)

        await asyncio.gather(*(ask(number) for number in range(many)))

    run(main())
    assert told == list(range(many))
