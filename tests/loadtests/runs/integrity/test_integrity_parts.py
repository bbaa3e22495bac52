"""The parts of a run add up to what was asked for, and finished ones are not played again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from loadtests.report.record import Record
from loadtests.runs.integrity import run as running
from loadtests.runs.integrity.parts import Done, Kind, Part, Sizes, parts_of
from loadtests.runs.integrity.play import SETTLED_WITHIN_S
from loadtests.runs.integrity.run import run
from services.router.workers.health import LONGEST_EJECTION_S
from tests.virtual import run as in_virtual_time

SIZES = Sizes(requests=45_000, faults=100, kills=10, nonces=1000, leavers=240)


def of(kind: Kind, parts: list[Part]) -> list[Part]:
    return [part for part in parts if part.kind is kind]


@pytest.mark.parametrize("sizes", [Sizes(), SIZES, Sizes(100, 1, 1, 20, 24)])
def test_the_parts_add_up_to_what_was_asked_for(sizes: Sizes) -> None:
    parts = parts_of(sizes)
    faults = of(Kind.FAULTS, parts)
    assert sum(part.requests for part in faults) == sizes.requests
    assert sum(part.faults for part in faults) == sizes.faults
    assert sum(part.faults for part in of(Kind.KILLS, parts)) == sizes.kills
    assert sum(part.requests for part in of(Kind.NONCES, parts)) == sizes.nonces
    assert sum(part.requests for part in of(Kind.LEAVERS, parts)) == sizes.leavers
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert len({part.seed for part in parts}) == len(parts)


def test_by_default_every_part_of_faults_has_a_whole_deck_and_the_full_figures_are_reached() -> None:
    assert {(part.requests, part.faults) for part in of(Kind.FAULTS, parts_of(Sizes()))} == {(20_000, 60)}
    assert Sizes() == Sizes(requests=100_000, faults=300, kills=100, nonces=20_000, leavers=2_400)
    assert Sizes().whole
    assert not SIZES.whole


def test_what_is_asked_for_zero_times_has_no_part() -> None:
    assert {part.kind for part in parts_of(Sizes(0, 0, 0, 0, 240))} == {Kind.LEAVERS}


def test_a_run_that_was_interrupted_goes_on_after_its_finished_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[int] = []

    async def play(part: Part, say: object) -> Done:
        if len(played) == 2 and part.number not in played:
            played.append(part.number)
            raise OSError("the machine went away")
        played.append(part.number)
        return Done(part.number, part.kind.value, Counter({"asked": part.requests}))

    monkeypatch.setattr(running, "PLAYS", dict.fromkeys(Kind, play))
    path, sizes = tmp_path / "record.jsonl", Sizes(45_000, 100, 0, 0, 0)
    with pytest.raises(OSError, match="went away"):
        in_virtual_time(lambda: run(sizes, Record(path, {}), lambda text: None))
    found = in_virtual_time(lambda: run(sizes, Record(path, {}), lambda text: None))
    assert played == [1, 2, 3, 3]
    assert found.counts["asked"] == 45_000


def test_a_part_waits_for_the_return_of_a_worker_that_is_ejected_for_the_longest_time() -> None:
    assert SETTLED_WITHIN_S > LONGEST_EJECTION_S
