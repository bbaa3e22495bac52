"""A line by deadline: its order, its ties, and the work that stands before a moment."""

from __future__ import annotations

import pytest

from services.core.edf import BLOCK, DeadlineQueue
from services.core.request import Request


def request(sequence: int, deadline: float, charge_tokens: float = 1.0) -> Request:
    made = Request(sequence, "a", arrived_at=0.0, deadline=deadline, prompt_tokens=1, max_tokens=1)
    made.sequence, made.charge_tokens = sequence, charge_tokens
    return made


def line(*deadlines: float) -> tuple[DeadlineQueue, list[Request]]:
    requests = [request(at, deadline) for at, deadline in enumerate(deadlines)]
    made = DeadlineQueue()
    for each in requests:
        made.add(each)
    return made, requests


def test_the_earliest_deadline_is_first_whenever_it_came():
    made, requests = line(5.0, 3.0, 9.0, 1.0)
    assert made.first is requests[3]
    assert [each.deadline for each in made] == [1.0, 3.0, 5.0, 9.0]


def test_equal_deadlines_keep_their_order_of_arrival():
    made, requests = line(5.0, 5.0, 5.0)
    assert list(made) == requests


def test_an_empty_line_has_no_first_and_no_work():
    made = DeadlineQueue()
    assert made.first is None
    assert len(made) == 0
    assert made.work_before(1e9) == 0.0


def test_the_work_before_a_deadline_counts_those_at_it_too_since_they_came_first():
    made = DeadlineQueue()
    for at, (deadline, charge) in enumerate([(1.0, 10.0), (2.0, 20.0), (2.0, 30.0), (3.0, 40.0)]):
        made.add(request(at, deadline, charge))
    assert [made.work_before(deadline) for deadline in (0.5, 1.0, 2.0, 2.5, 3.0)] == [0.0, 10.0, 60.0, 60.0, 100.0]


@pytest.mark.parametrize("count", [2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK])
def test_every_request_can_be_taken_out_wherever_it_stands(count: int):
    for taken in range(count):
        made, requests = line(*(float(at) for at in range(count)))
        made.discard(requests[taken])
        assert list(made) == requests[:taken] + requests[taken + 1 :]


def test_a_long_line_can_be_emptied_from_the_middle_outwards():
    made, requests = line(*(float(at % 7) for at in range(6 * BLOCK)))
    for each in sorted(requests, key=lambda each: abs(each.sequence - 3 * BLOCK)):
        made.discard(each)
    assert made.first is None
    assert made.work == 0.0


def test_one_that_is_not_here_cannot_be_taken_out():
    made, requests = line(1.0, 2.0)
    made.discard(requests[0])
    for stranger in (requests[0], request(99, 1.5), request(98, 99.0)):
        with pytest.raises(KeyError):
            made.discard(stranger)
    assert list(made) == requests[1:]
    assert made.work == 1.0


def test_an_emptied_line_holds_no_work_however_its_sums_drifted():
    made = DeadlineQueue()
    requests = [request(at, float(at), charge) for at, charge in enumerate((1e16, 0.1, 0.2, 3.0))]
    for each in requests:
        made.add(each)
    for each in requests:
        made.discard(each)
    assert made.work == 0.0


def test_a_line_tells_its_span():
    made, _ = line(1.0, 4.0)
    assert repr(made) == "<DeadlineQueue 2 requests, 2 tokens of work, due 1 to 4>"
    assert repr(DeadlineQueue()) == "<DeadlineQueue 0 requests, 0 tokens of work>"
