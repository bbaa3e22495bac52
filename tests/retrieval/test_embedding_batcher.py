"""Who goes next and who is told: the plan alone, and the pace it is made with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.retrieval.embedding_batcher import (
    MAX_TEXT_TOKENS,
    BatchPlan,
    LatencyEstimate,
    PassDurationModel,
    estimate_tokens,
    plan_batch,
)


@dataclass(frozen=True, eq=False)
class Text:
    due: float
    tokens: int = 1


def planned(*jobs: Text, free_at: float = 0.0, is_idle: bool = False, max_texts: int = 4) -> BatchPlan[Text]:
    """A pass lasts one second and one more for each token."""
    return plan_batch(
        jobs, free_at=free_at, is_idle=is_idle, max_texts=max_texts, duration_s=lambda tokens: 1.0 + tokens
    )


def test_an_empty_line_has_no_plan() -> None:
    assert planned(is_idle=True) == BatchPlan([], [], [])


def test_a_text_that_could_not_make_it_alone_in_the_next_pass_is_late() -> None:
    late, in_time = Text(due=11.9), Text(due=12.0)
    assert planned(late, in_time, free_at=10.0) == BatchPlan([in_time], [], [late])


def test_a_text_that_no_longer_fits_waits_for_the_pass_after() -> None:
    tight, lax = Text(due=2.5), Text(due=9.0)
    assert planned(lax, tight) == BatchPlan([tight], [lax], [])


def test_an_idle_model_is_given_the_text_with_the_most_time_left_if_none_can_make_it() -> None:
    jobs = Text(due=1.0), Text(due=1.5), Text(due=1.2)
    assert planned(*jobs, is_idle=True) == BatchPlan([jobs[1]], [], [jobs[0], jobs[2]])


@given(
    st.lists(st.builds(Text, due=st.floats(0, 50), tokens=st.integers(1, 5)), max_size=12),
    st.floats(0, 10),
    st.integers(1, 5),
)
def test_everyone_is_somewhere_once_and_a_pass_ends_before_any_deadline_in_it(
    jobs: list[Text], free_at: float, max_texts: int
) -> None:
    made = planned(*jobs, free_at=free_at, max_texts=max_texts)
    assert sorted(map(id, [*made.next, *made.later, *made.late])) == sorted(map(id, jobs))
    assert len(made.next) <= max_texts
    assert bool(made.next) == (len(made.late) < len(jobs))
    if made.next:
        end = free_at + 1.0 + sum(job.tokens for job in made.next)
        assert end <= min(job.due for job in made.next)


def test_an_estimate_is_cautious_and_keeps_nobody_out_before_it_knows() -> None:
    estimate = LatencyEstimate()
    assert estimate.value == 0.0
    for _ in range(100):
        estimate.record(2.0)
    assert estimate.value == pytest.approx(2.0, abs=0.01)
    estimate.record(3.0)
    assert estimate.value > 2.2


def test_one_long_stall_counts_as_a_slow_pass_and_no_more() -> None:
    stalled, slow = LatencyEstimate(), LatencyEstimate()
    for estimate, worst in ((stalled, 3600.0), (slow, 6.0)):
        estimate.record(1.0)
        estimate.record(worst)
    assert stalled.value == slow.value


def test_two_quick_samples_in_a_row_end_a_slow_time_and_one_alone_does_not() -> None:
    ended, mixed = LatencyEstimate(), LatencyEstimate()
    for _ in range(20):
        ended.record(3.0)
    ended.record(1.0)
    assert ended.value > 3.0, "one may be luck"
    ended.record(1.0)
    assert ended.value == pytest.approx(1.5)
    for sample in [3.0, 1.0] * 20:
        mixed.record(sample)
        assert mixed.value >= 3.0, "where every other is slow, the next may be"


def test_a_copy_has_seen_the_same_and_learns_alone() -> None:
    pace = PassDurationModel()
    pace.record(16, 0.040)
    duplicate = pace.copy()
    assert duplicate.duration_s(16) == pace.duration_s(16)
    duplicate.record(16, 0.160)
    assert duplicate.duration_s(16) > pace.duration_s(16)


def test_a_pace_learned_from_short_texts_holds_for_long_ones() -> None:
    pace = PassDurationModel()
    pace.record(16, 0.040)
    assert pace.duration_s(40) == pytest.approx(2 * pace.duration_s(16))


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("four", 1), ("fives", 2), ("x" * 9999, MAX_TEXT_TOKENS)])
def test_tokens_are_guessed_from_bytes_up_to_what_a_model_reads(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
