"""What is read off a run beside its rows: recoveries, tries, and what was done to the workers meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtests.cluster.meters import Meter
from loadtests.cluster.processes import Process
from loadtests.cluster.stand import Server, Shape, Stand
from loadtests.load.ledger import LATE, ON_TIME, Ledger, Row
from loadtests.runs.matrix import play as module
from loadtests.runs.matrix.play import back_after, figures_of, peak_load, trouble
from tests.loadtests.runs.matrix.made import asked, case, load


def ledger_of(on_time: dict[float, bool]) -> Ledger:
    ledger = Ledger()
    for at_s, good in on_time.items():
        row = Row(len(ledger.rows), "a", at_s, 1000)
        row.sent_s = row.last_sent_s = at_s
        row.end_s, row.attempts = at_s + (0.1 if good else 1.01), 1
        ledger.enter(row)
        ending = ON_TIME if good else LATE
        ledger.tried(row, ending)
        ledger.close(row, ending)
    return ledger


def seconds(until: float, good: Any) -> dict[float, bool]:
    """One arrival every hundredth of a second."""
    return {index / 100: good(index / 100) for index in range(int(until * 100))}


def test_who_never_suffered_is_back_at_once() -> None:
    assert back_after(ledger_of(seconds(20, lambda at: True)), 12, 19, 0.9) == 0


def test_a_recovery_is_timed_to_the_last_bad_moment() -> None:
    found = back_after(ledger_of(seconds(20, lambda at: at < 12 or at > 13)), 12, 19, 0.9)
    assert 0.8 <= found <= 1.1
    relapse = back_after(ledger_of(seconds(20, lambda at: at < 12 or (at > 13 and not 15 < at < 15.5))), 12, 19, 0.9)
    assert 3.3 <= relapse <= 3.6


def test_who_never_comes_back_counts_to_the_end() -> None:
    assert back_after(ledger_of(seconds(20, lambda at: at < 12)), 12, 19, 0.9) == 7


def test_the_greatest_load_is_that_of_the_window_that_is_looked_at() -> None:
    scenario = case("burst").scenario
    assert peak_load(scenario, 0.0, 30.0) == 10.0
    assert peak_load(scenario, 7.0, 21.0) == 10.0
    assert peak_load(scenario, 25.0, 30.0) == 0.75
    assert peak_load(case("mixed_sizes").scenario, 0.0, 13.0) == 4.0


def test_the_shares_before_and_after_a_trouble_are_compared() -> None:
    scenario = case("recovery").scenario  # trouble from 4 to 8 s, of 15; counted again from 11
    rows = [asked(n, ON_TIME, at_s=2.0) for n in range(4)]
    rows += [asked(10 + n, LATE, at_s=6.0) for n in range(4)]
    rows += [asked(20 + n, ON_TIME if n else LATE, at_s=12.0) for n in range(4)]
    found = figures_of(scenario, load(*rows))
    assert (found["on_time_before"], found["on_time_during"], found["on_time_after"]) == (1.0, 0.0, 0.75)
    assert found["after_over_before"] == 0.75
    assert found["late_answers"] == 0  # none of them was asked so late that its answer came after the deadline
    assert "back_after_s" not in figures_of(case("baseline").scenario, load(*rows))


def test_workers_fail_when_and_as_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[float, str, float]] = []

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    @contextmanager
    def frozen(name: str) -> Iterator[None]:
        done.append((clock[0], f"freeze {name}", 0.0))
        yield
        done.append((clock[0], f"thaw {name}", 0.0))

    clock = [0.0]
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr(
        module, "make_slow", lambda workers, factor, for_s: done.append((clock[0], f"slow {factor:g}", for_s))
    )
    monkeypatch.setattr(Process, "pid", property(lambda self: self.name))
    monkeypatch.setattr(module, "frozen", frozen)
    workers = [Server(Process(f"w{n}", ["true"], {}, tmp_path), f"http://127.0.0.1:{5000 + n}") for n in (0, 1)]
    stand = Stand(Shape(), tmp_path, workers)
    begins = module.START_IN_S

    def after(name: str) -> list[tuple[float, str, float]]:
        done.clear()
        clock[0] = 0.0
        wanted = trouble(case(name).scenario)
        assert wanted is not None
        assert asyncio.run(wanted(stand)) == Meter()
        return list(done)

    assert after("recovery") == [(begins + 4, "slow 50", 4.0)]
    assert after("outage_frozen") == [
        (begins + 7, "freeze w0", 0.0), (begins + 7, "freeze w1", 0.0),
        (begins + 11, "thaw w1", 0.0), (begins + 11, "thaw w0", 0.0),
    ]  # fmt: skip
    assert trouble(case("baseline").scenario) is None
