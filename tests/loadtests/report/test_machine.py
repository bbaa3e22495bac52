"""The line under every figure: what it was measured on, once, with every commit."""

from __future__ import annotations

from loadtests.report.machine import together

HERE = "2 cores of a test, Linux 6.1, Python 3.11.7"
ELSEWHERE = "8 cores of a test, Linux 6.1, Python 3.11.7"


def test_one_machine_is_named_once_with_every_commit() -> None:
    one = f"{HERE}; commit abc, 2026-01-02"
    assert together([one, one]) == one
    several = [one, f"{HERE}; commit abc with changes, 2026-01-02", f"{HERE}; commit def, 2026-01-02", one]
    assert together(several) == f"{HERE}; commits abc, abc with changes and def, 2026-01-02"


def test_what_took_days_is_told_from_when_to_when() -> None:
    days = [f"{HERE}; commit abc, 2026-01-{day:02}" for day in (5, 2, 3)]
    assert together(days) == f"{HERE}; commit abc, 2026-01-02 to 2026-01-05"


def test_two_machines_are_two() -> None:
    two = [f"{HERE}; commit abc, 2026-01-02", f"{ELSEWHERE}; commit abc, 2026-01-02"]
    assert together(two) == "; ".join(two)
    assert together([*two, "a test"]) == "; ".join([*two, "a test"])
    assert together([]) == ""
