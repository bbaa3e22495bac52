"""Many seeds: what is kept of them, and what a later run goes on with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from loadtests.report.record import OtherRun
from loadtests.world.play import Result
from loadtests.world.run import Record, Totals, many

CHEAP_SEED = 8
SIZE = 100


def result(seed: int, *violations: str, faults: int = 0) -> Result:
    counts = Counter({"right": 90, "refused": 10})
    return Result(seed, 100, list(violations), f"digest {seed}", 20.0, faults, counts, cpu_s=0.25)


def opened(path: Path, machine: str = "one core of this; commit abc") -> Record:
    return Record(path, size=SIZE, machine=machine)


def test_a_later_run_finds_what_an_earlier_one_has_played(tmp_path: Path) -> None:
    path = tmp_path / "out" / "world.jsonl"
    record = opened(path)
    record.add(result(1, faults=2))
    record.add(result(7, "a promise was broken"))
    assert opened(path).played == {1: result(1, faults=2), 7: result(7, "a promise was broken")}


def test_half_a_line_of_a_run_that_was_killed_is_played_again(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"
    opened(path).add(result(1))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"seed": 2, "requ')
    later = opened(path)
    assert list(later.played) == [1]
    later.add(result(2))
    assert list(opened(path).played) == [1, 2]


def test_seeds_of_another_commit_are_not_added_to_these(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"
    opened(path)
    with pytest.raises(OtherRun, match=r"belongs to the run .*abc.*, and this run is .*def.*: name another file"):
        opened(path, machine="one core of this; commit def")


def test_the_totals_count_each_seed_once_and_name_those_that_broke_a_promise() -> None:
    totals = Totals()
    for played in (result(1, faults=1), result(2, "a promise was broken"), result(3)):
        totals.add(played)
    assert totals.broken == [2]
    assert str(totals) == (
        "3 seeds (1 with faults), 300 requests (30 refused, 270 right), 60 virtual seconds in 0.8 s of processor time: "
        "400 requests a second of one core; 1 seeds broke a promise"
    )


def test_only_the_seeds_that_are_not_in_the_record_are_played_and_all_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "world.jsonl"
    opened(path).add(result(CHEAP_SEED - 1, "a promise was broken"))
    told: list[Result] = []
    seeds = range(CHEAP_SEED - 1, CHEAP_SEED + 1)
    totals = many(seeds, size=SIZE, seconds=0, jobs=1, kept=opened(path), report=told.append)
    assert (totals.seeds, totals.broken, told) == (2, [CHEAP_SEED - 1], [])
    kept = opened(path).played
    assert list(kept) == [CHEAP_SEED - 1, CHEAP_SEED]
    assert kept[CHEAP_SEED].requests == totals.requests - 100 > 0


def test_no_seed_is_begun_after_the_time_that_was_given() -> None:
    assert many(range(1, 100), size=SIZE, seconds=1e-9, jobs=1, kept=None, report=print).seeds == 0
