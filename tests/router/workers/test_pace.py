"""What a learned limit listens to: congestion, and neither the length of answers nor that of prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from services.core.pace import FIRST_READING, Pace
from services.router.request import InferenceRequest
from services.router.workers.fleet import Fleet
from tests.router.fleetrig import asked, fleet_of, worker

MOST = 128

Sizes = Callable[[Random], tuple[int, int]]


@dataclass(eq=False)
class Running:
    turn: InferenceRequest
    sent_at: float
    prompt: int
    answer: int
    written: int = 0
    first_at: float = 0.0


@dataclass
class Server:
    """A batching server: a step takes base + each * running + reading * new prompt tokens; above `side_by_side` the
    rest waits in its own line, and nobody is told."""

    side_by_side: int = MOST
    base_s: float = 0.02
    each_s: float = 0.0005
    reading_s: float = 0.0001
    answering_s: float = 0.0
    """Before anything else, in parallel: the network, and a front."""

    def play(
        self, fleet: Fleet, sizes: Sizes, answers: int, rng: Random, *, after_first: bool = False
    ) -> list[tuple[float, int]]:
        """Clients that ask for more than it can do; (time, limit) at each answer."""
        now, line, running = 0.0, deque[Running](), list[Running]()
        one, story = fleet.workers[0], list[tuple[float, int]]()
        while len(story) < answers:
            while fleet.fits(turn := asked(answer=1)):
                fleet.take(turn)
                prompt, answer = sizes(rng)
                line.append(Running(turn, now, prompt, answer))
            new = [line.popleft() for _ in range(min(len(line), self.side_by_side - len(running)))]
            running += new
            step_s = self.base_s + self.each_s * len(running) + self.reading_s * sum(it.prompt for it in new)
            now += step_s * rng.uniform(0.9, 1.1)
            for it in running:
                it.written += 1
                it.first_at = it.first_at or now
            for it in [it for it in running if it.written >= it.answer]:
                running.remove(it)
                seconds = now - it.sent_at + self.answering_s * rng.uniform(0.9, 1.1)
                pace = one.pace(seconds, it.prompt, it.answer)
                if after_first:
                    pace = (now - it.first_at) / (it.answer - 1) if it.answer > 1 else None
                fleet.give_back(one, it.turn, pace=pace, served=True)
                story.append((now, one.slots))
        for it in (*line, *running):
            fleet.give_back(one, it.turn)
        return story


def chat(rng: Random) -> tuple[int, int]:
    return rng.randrange(50, 500), min(400, max(2, round(rng.lognormvariate(3.5, 0.8))))


def auto() -> Fleet:
    return fleet_of(worker("a", slots="auto", most=MOST))


def at_rest(story: list[tuple[float, int]]) -> float:
    limits = [limit for _, limit in story[len(story) // 2 :]]
    return sum(limits) / len(limits)


@pytest.mark.parametrize("side_by_side", [4, 8, 16])
def test_the_limit_stays_near_what_a_server_runs_side_by_side(side_by_side: int) -> None:
    limit = at_rest(Server(side_by_side).play(auto(), chat, 3000, Random(1)))
    assert side_by_side <= limit <= 3 * side_by_side


def test_time_per_token_after_the_first_does_not_hear_the_servers_own_line() -> None:
    limit = at_rest(Server(8).play(auto(), chat, 6000, Random(1), after_first=True))
    assert limit > 0.8 * MOST  # which is why it is not what is listened to


def test_a_server_that_only_gets_slower_is_limited_where_it_is_twice_as_slow() -> None:
    """Tolerance 2: a step of 20 + 0.5 n ms has doubled, to 41 ms, at n = 42; prompts to be read come on top."""
    limit = at_rest(Server(base_s=0.02, each_s=0.0005, reading_s=0.0).play(auto(), chat, 8000, Random(2)))
    assert 28 <= limit <= 60


def test_longer_prompts_are_not_taken_for_congestion() -> None:
    """Beyond what they are: while a long prompt is read, everyone else's step waits for it."""
    server, fleet, rng = Server(24, base_s=0.02, each_s=0.0001, reading_s=0.00002), auto(), Random(3)
    before = at_rest(server.play(fleet, lambda rng: (rng.randrange(20, 3000), rng.randrange(20, 60)), 3000, rng))
    after = at_rest(server.play(fleet, lambda rng: (rng.randrange(2000, 3000), rng.randrange(20, 60)), 3000, rng))
    assert after > 0.5 * before


class Unlearned(Pace):
    """Time over tokens, and no more."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.overhead_tokens = self.reading = 0.0

    def _learn(self, seconds: float, prompt_tokens: float, completion_tokens: float) -> None:
        pass


def test_what_a_request_costs_before_its_prompt_is_not_taken_for_slow_tokens() -> None:
    """A second of network and front. After answers of two tokens, longer ones would seem fast at any load."""
    limits = []
    for pace in (Pace(), Unlearned()):
        server, fleet, rng = Server(24, base_s=0.02, each_s=0.0001, answering_s=1.0), auto(), Random(3)
        fleet.workers[0].paces = pace
        server.play(fleet, lambda rng: (100, rng.randrange(2, 60)), 1000, rng)
        server.play(fleet, lambda rng: (100, rng.randrange(2, 4)), 2000, rng)
        limits.append(at_rest(server.play(fleet, lambda rng: (100, rng.randrange(40, 80)), 3000, rng)))
    learned, unlearned = limits
    assert 24 <= learned < 0.75 * MOST < unlearned


def test_longer_and_shorter_answers_are_not_taken_for_congestion() -> None:
    server, fleet, rng = Server(16, answering_s=0.2), auto(), Random(4)
    limits = [
        at_rest(server.play(fleet, lambda rng, n=length: (100, rng.randrange(n, 2 * n)), 2500, rng))  # type: ignore[misc]
        for length in (40, 200, 20, 100)
    ]
    assert min(limits) > 8


def test_a_server_that_becomes_slower_for_good_is_learned_anew() -> None:
    fleet, rng = auto(), Random(5)
    Server(16).play(fleet, chat, 2000, rng)
    limit = at_rest(Server(16, base_s=0.1, each_s=0.002).play(fleet, chat, 5000, rng))
    assert 12 <= limit <= 48


# ---- the prices alone


def taught(samples: list[tuple[float, int, int]]) -> Pace:
    pace = Pace()
    for seconds, prompt, written in samples:
        pace.of(seconds, prompt, written, alone=True)
    return pace


def test_prices_are_found_where_sizes_vary() -> None:
    rng = Random(6)
    sizes = [(rng.randrange(0, 4000), rng.randrange(5, 300)) for _ in range(60)]
    samples = [((0.3 + 0.0002 * p + 0.01 * n) * rng.uniform(0.9, 1.1), p, n) for p, n in sizes]
    pace = taught(samples)
    assert pace.overhead_tokens == pytest.approx(30, rel=0.35)
    assert pace.reading == pytest.approx(0.02, rel=0.35)
    paces = [pace.of(0.3 + 0.0002 * p + 0.01 * n, p, n, alone=False) or 0.0 for p, n in ((0, 5), (0, 300), (4000, 5))]
    assert max(paces) < 1.35 * min(paces)


def test_the_first_guess_stands_where_sizes_say_nothing() -> None:
    pace = taught([(1.0, 1000, 100)] * 40)
    assert pace.reading == pytest.approx(FIRST_READING, rel=0.05)
    assert pace.of(1.0, 1000, 100, alone=False) == pytest.approx(1 / 106, rel=0.05)


def test_prices_are_not_learned_under_load() -> None:
    pace = taught([(1.0, 1000, 100)] * 40)
    before = (pace.overhead_tokens, pace.reading)
    slow = [pace.of(5.0, 10 * n, n, alone=False) for n in range(1, 100)]
    assert (pace.overhead_tokens, pace.reading) == before
    assert all(slow)


def test_prices_are_never_below_zero_and_paces_never_absurd() -> None:
    rng = Random(7)
    for _ in range(200):
        pace = Pace()
        for _ in range(30):
            seconds, prompt, written = rng.lognormvariate(0, 2), rng.randrange(0, 9000), rng.randrange(1, 900)
            found = pace.of(seconds, prompt, written, alone=True)
            assert found is not None
            assert 0 < found <= seconds
            assert pace.overhead_tokens >= 0
            assert pace.reading >= 0


def test_an_answer_without_counts_has_no_pace() -> None:
    pace = Pace()
    for nothing in ((1.0, 10, 0), (0.0, 10, 10), (-1.0, 1, 1), (float("nan"), 1, 1), (1.0, -1, 5)):
        assert pace.of(*nothing, alone=True) is None
    assert worker("a", slots=4).pace(1.0, 10, 10) is None  # its slots are announced: nobody listens
