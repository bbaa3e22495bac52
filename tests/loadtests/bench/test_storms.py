"""The page of storms: when all is well again, and what stands in a row."""

from __future__ import annotations

import pytest

from loadtests.bench.storms.bench import Played, back_after_s, result
from loadtests.report.result import markdown
from services.contracts.storm import Mark, PolicyTold, Run, Second
from tests.loadtests.storm.made_up import a_run


def run(on_time: list[int], *, trouble_ends_s: float = 2.0) -> Run:
    """Ten end each second, and so many of them are answered on time."""
    series = [Second(s=s, sent=10, on_time=count, gone=10 - count) for s, count in enumerate(on_time)]
    marks = [Mark(1.0, "trouble"), Mark(trouble_ends_s, "none")]
    return a_run(series=series, marks=marks, seconds=float(len(on_time)))


@pytest.mark.parametrize(
    ("on_time", "back_s"),
    [
        ([10, 0, 10, 10, 10, 10, 10, 10], 0),
        ([10, 0, 0, 0, 0, 10, 10, 10], 3),
        ([10, 0, 0, 10, 10, 10, 0, 0], None),  # once more after that is not back
        ([10, 0, 0, 0, 0, 0, 0, 0], None),
        ([10, 0, 9, 9, 9, 9, 9, 9], 0),
        ([10, 0, 8, 8, 8, 8, 8, 8], None),
    ],
)
def test_all_is_well_again_when_it_stays_so(on_time: list[int], back_s: float | None):
    assert back_after_s(run(on_time)) == back_s


def test_a_row_has_what_the_reader_compares():
    without = a_run("c3d4", policy=PolicyTold(admission=False, fairness=True, cancellation=True), on_time=7)
    text = markdown(result([Played(a_run(), ()), Played(without, ("admission",))]), command="storms", machine="here")
    assert "## Burst" in text
    rows = [line for line in text.splitlines() if line.startswith("| all on") or line.startswith("| admission off")]
    assert len(rows) == 2
    assert "| 230 | 150 | 97.0 % | anna 90 % | 902 ms | 0.3 % |" in rows[0]
    assert "| 7 |" in rows[1]
    assert "Written by `storms`, on here" in text
