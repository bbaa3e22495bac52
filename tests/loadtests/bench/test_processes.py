"""A router of several processes: which cores everybody gets, and what is called an estimate."""

from __future__ import annotations

import pytest

from loadtests.bench import processes
from loadtests.bench.processes import Layout, Seen, estimate, introduction, layout, measured
from loadtests.load.closed import LoopResults
from loadtests.load.closed_processes import Sent, together


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, (1, 2)), (2, (1, 2)), (4, (1, 2)), (7, (1, 2)), (8, (1, 2, 4)), (16, (1, 2, 4, 8))]
)
def test_as_many_processes_are_measured_as_leave_the_others_as_many_cores_and_always_two(cores, counts):
    assert measured(cores) == counts


def test_on_two_cores_clients_and_stub_share_the_second_one():
    assert layout([0, 1], 1) == Layout((0,), (1,), (1,))
    assert layout([0, 1], 2) == Layout((0, 1), (1,), (1,))
    assert layout([3], 2) == Layout((3, 3), (3,), (3,))


def test_on_many_cores_no_core_has_two_processes():
    for count in measured(16):
        routers, stubs, clients = layout(range(16), count)
        assert len(routers) == count
        assert len({*routers, *stubs, *clients}) == len(routers) + len(stubs) + len(clients) == min(16, 3 * count + 2)
        assert abs(len(stubs) - len(clients)) <= 1


def test_the_page_says_where_the_clients_were():
    assert "share the second core with a process" in introduction([0, 1])
    assert "cores of their own, up to 8 for 8 processes" in introduction(range(16))
    assert "cores of their own, up to 6 for 2 processes" not in introduction(range(4))
    assert "cores of their own, up to 2 for 2 processes" in introduction(range(4))


def test_only_what_was_not_measured_is_called_an_estimate():
    seen = {count: Seen(0.0, cpu_us, "") for count, cpu_us in ((1, 50.0), (2, 100.0))}
    rows = list(estimate(seen, seen))[2:]
    assert rows == [
        "| 1 | 20,000 | 20,000 | from a measured run |",
        "| 2 | 20,000 | 20,000 | from a measured run |",
        "| 4 | 40,000 | 40,000 | estimate |",
        "| 8 | 80,000 | 80,000 | estimate |",
    ]
    assert "estimate" not in "".join(estimate(*[dict.fromkeys(processes.COUNTS, Seen(0.0, 1.0, ""))] * 2))


def test_clients_in_several_processes_are_counted_over_the_time_of_all_of_them():
    one, two = LoopResults(seconds=[0.1, 0.2], statuses={200: 2}), LoopResults(seconds=[0.3], statuses={200: 1, 429: 1})
    both = together([Sent(10.0, 12.0, one), Sent(10.5, 14.0, two)])
    assert (both.wall_s, both.seconds, both.statuses) == (4.0, [0.1, 0.2, 0.3], {200: 3, 429: 1})
