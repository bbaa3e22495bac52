"""Both kinds of workers on cases that were worked out by hand, to the microsecond."""

from __future__ import annotations

from typing import Any

import pytest

from tests.loadtests.simulator.worlds import play, scenario, unmeasured

LATE = 1000.0
EXACT = {"kind": "slots", "slots": 2, "prefill_tokens_per_s": 1000, "s_per_token": 0.01, "jitter": 0}
STEPS = {
    "kind": "steps",
    "slots": 2,
    "base_ms": 10,
    "per_sequence_ms": 1,
    "per_prefill_token_ms": 0.1,
    "chunk_tokens": 100,
}


def spans(arrivals: list[tuple[float, int, int, float]], **others: Any) -> list[tuple[float, float]]:
    _, jobs = play(arrivals, duration_s=60, **others)
    return [(pytest.approx(job.ran_from), pytest.approx(job.ran_until)) for job in jobs]


# ---- slots


def test_a_slot_takes_prefill_and_then_so_much_a_token() -> None:
    _, (job,) = play([(1.0, 500, 20, LATE)], worker=EXACT)
    assert (job.ran_from, job.read_at, job.ran_until) == pytest.approx((1.0, 1.5, 1.7))
    assert job.used_s == pytest.approx(0.7)


def test_a_third_request_waits_for_the_first_of_two_slots() -> None:
    asked = [(0.0, 500, 20, LATE), (0.1, 500, 50, LATE), (0.2, 100, 10, LATE)]
    assert spans(asked, worker=EXACT) == [(0.0, 0.7), (0.1, 1.1), (0.7, 0.9)]


def test_a_round_trip_leaves_the_slot_empty_and_a_lookahead_hides_it() -> None:
    asked = [(0.0, 100, 10, LATE)] * 3
    far = EXACT | {"slots": 1, "round_trip_ms": 20}
    assert spans(asked, worker=far) == [(0.01, 0.21), (0.23, 0.43), (0.45, 0.65)]
    assert spans(asked, worker=far | {"lookahead": 1}) == [(0.01, 0.21), (0.21, 0.41), (0.41, 0.61)]


def test_jitter_spreads_services_evenly_around_their_length() -> None:
    asked = [(0.05 * place, 1, 10, LATE) for place in range(400)]
    _, jobs = play(asked, worker=EXACT | {"jitter": 0.2, "slots": 8}, duration_s=60)
    lengths = [job.used_s / 0.101 for job in jobs]
    assert 0.8 <= min(lengths) < 0.82
    assert 1.18 < max(lengths) <= 1.2
    assert sum(lengths) / 400 == pytest.approx(1.0, abs=0.02)


def test_cancelling_a_running_job_frees_its_slot_at_once() -> None:
    asked = [(0.0, 100, 1000, 0.5), (0.1, 100, 10, LATE)]
    one = EXACT | {"slots": 1}
    assert spans(asked, worker=one, cancels=True) == [(0.0, 0.5), (0.5, 0.7)]
    assert spans(asked, worker=one, cancels=False)[1][0] == 10.1


def test_what_was_generated_before_a_cancellation_is_known() -> None:
    _, (job,) = play([(0.0, 100, 1000, 0.5)], worker=EXACT, cancels=True)
    assert (job.worker_tokens, job.tokens_done) == (1000, 40)


def test_cancelling_takes_the_round_trip_where_there_is_one() -> None:
    far = EXACT | {"slots": 1, "round_trip_ms": 100}
    _, (first, second) = play([(0.0, 100, 1000, 0.5), (0.1, 100, 10, LATE)], worker=far, cancels=True)
    assert first.ran_until == pytest.approx(0.55)
    assert second.ran_from == pytest.approx(0.65)


def test_a_worker_that_goes_down_loses_its_jobs_and_comes_back_empty() -> None:
    down = EXACT | {"failures": [{"from_s": 0.3, "until_s": 2.0}]}
    _, (lost, later) = play([(0.0, 100, 100, LATE), (1.0, 100, 10, LATE)], worker=down)
    assert lost.ran_until == pytest.approx(0.3)
    assert lost.tokens_done == 20
    assert (later.ran_from, later.ran_until) == pytest.approx((2.0, 2.2))


def test_a_slow_worker_takes_longer_for_what_begins_while_it_is_slow() -> None:
    slow = EXACT | {"failures": [{"from_s": 0.5, "until_s": 1.0, "kind": "slow", "factor": 3}]}
    asked = [(0.0, 100, 10, LATE), (0.6, 100, 10, LATE), (1.5, 100, 10, LATE)]
    assert spans(asked, worker=slow) == [(0.0, 0.2), (0.6, 1.2), (1.5, 1.7)]


def test_the_least_loaded_worker_is_chosen() -> None:
    asked = [(0.0, 1000, 100, LATE), (0.0, 10, 1, LATE), (0.001, 10, 1, LATE)]
    _, (big, small, next_one) = play(asked, worker=EXACT | {"count": 2})
    assert big.worker is not small.worker
    assert next_one.worker is not None
    assert next_one.worker is small.worker


def test_no_job_stands_in_a_line_while_another_worker_has_a_slot() -> None:
    big, small = (0.0, 500_000, 100, LATE), (0.0, 1, 1, LATE)
    two = EXACT | {"count": 2, "lookahead": 1}
    _, jobs = play([big, small, small, small], worker=two)
    assert [job.ran_from for job in jobs] == [0.0] * 4


def test_the_first_token_comes_when_the_prompt_is_read_and_one_is_written() -> None:
    simulation, _ = play([(1.0, 500, 20, LATE)], worker=EXACT)
    assert simulation.plan.accounts["t0"].first_token_s.largest == pytest.approx(0.51)


# ---- steps


def test_a_lone_sequence_reads_its_prompt_in_chunks_and_writes_a_token_a_step() -> None:
    # 250 tokens of prompt: two full chunks of 100 (10 + 1 + 10 = 21 ms each), then 50 (16 ms), which gives the first
    # token; four more steps of 11 ms.
    _, (job,) = play([(1.0, 250, 5, LATE)], worker=STEPS)
    assert job.ran_from == 1.0
    assert job.ran_until - 1.0 == pytest.approx(0.021 * 2 + 0.016 + 4 * 0.011)
    assert job.used_s == pytest.approx(2 * (job.ran_until - job.ran_from))  # counted once for each slot


def test_two_sequences_share_steps_and_the_longer_goes_on_alone() -> None:
    # One step reads both prompts (10 + 2 + 2 = 14 ms); 9 steps of two (12 ms) end the first; 10 of one (11 ms) follow.
    assert spans([(0.0, 10, 10, LATE), (0.0, 10, 20, LATE)], worker=STEPS) == [(0.0, 0.122), (0.0, 0.232)]


def test_a_newcomer_joins_at_the_next_step_and_slows_it() -> None:
    # First: 11 ms to read 0.1 ms more, then steps of 11 ms. At 30 ms its third step is under way, till 33.1.
    first = (0.0, 1, 6, LATE)
    newcomer = (0.03, 100, 1, LATE)
    # The newcomer's step: 10 + 2 + 10 = 22 ms, one token for each; then three left for the first: 6 - 3 - 1 = 2.
    joined = 0.0111 + 2 * 0.011
    assert spans([first, newcomer], worker=STEPS) == [(0.0, joined + 0.022 + 2 * 0.011), (joined, joined + 0.022)]


def test_a_slot_is_taken_over_at_the_very_step_that_frees_it() -> None:
    asked = [(0.0, 10, 1, LATE)] * 3
    one = STEPS | {"slots": 1}
    assert spans(asked, worker=one) == [(0.0, 0.012), (0.012, 0.024), (0.024, 0.036)]


def test_a_step_worker_stops_a_job_at_the_end_of_the_step_under_way() -> None:
    # 12 ms to read, then steps of 11 ms; the deadline of 50 ms falls into the fourth, which ends at 56.
    asked = [(0.0, 10, 1000, 0.050), (0.0, 10, 3, 0.045)]
    _, (job, other) = play(asked, worker=STEPS | {"slots": 1}, cancels=True)
    assert job.ran_until == pytest.approx(0.012 + 4 * 0.011)
    assert job.tokens_done == 5
    assert other.state is not None
    assert not other.used_s


def test_prompts_are_read_first_come_first_served() -> None:
    # 100 tokens a step: the first takes 150, so the second gets 50 of the second step, and the rest in a third.
    _, (first, second) = play([(0.0, 150, 1, LATE), (0.0, 60, 1, LATE)], worker=STEPS)
    assert first.ran_until == pytest.approx(0.021 + 0.022)
    assert second.ran_until == pytest.approx(0.021 + 0.022 + 0.012)


def test_used_time_adds_up_to_busy_time() -> None:
    simulation, jobs = play([(0.013 * place, 37 + place, 1 + place % 17, LATE) for place in range(60)], worker=STEPS)
    ends = max(job.ran_until for job in jobs)
    gaps, busy_until = 0.0, 0.0
    for job in sorted(jobs, key=lambda job: job.ran_from):
        gaps += max(0.0, job.ran_from - busy_until)
        busy_until = max(busy_until, job.ran_until)
    assert sum(job.used_s for job in jobs) / 2 == pytest.approx(ends - gaps)
    assert simulation.work.total(10.0).wasted_share == pytest.approx(0.0)


def test_a_step_worker_that_goes_down_loses_its_jobs_and_their_time_counts() -> None:
    down = STEPS | {"failures": [{"from_s": 0.05, "until_s": 1.0}]}
    _, (lost, later) = play([(0.0, 10, 100, LATE), (0.1, 10, 1, LATE)], worker=down)
    assert lost.ran_until == 0.05
    assert lost.used_s == pytest.approx(2 * 0.05)
    assert (later.ran_from, later.ran_until) == pytest.approx((1.0, 1.012))


def test_a_slow_step_worker_is_slow_from_the_next_step_on() -> None:
    slow = STEPS | {"failures": [{"from_s": 0.02, "until_s": 50, "kind": "slow", "factor": 10}]}
    assert spans([(0.0, 10, 4, LATE)], worker=slow) == [(0.0, 0.012 + 0.011 + 2 * 0.11)]


@pytest.mark.parametrize("worker", [EXACT, STEPS])
def test_a_saturated_worker_is_fully_used(worker: dict[str, Any]) -> None:
    tenant = {"arrivals": {"kind": "poisson", "rate_per_s": 100}, "completion_tokens": 20, "deadline_s": 2}
    report = unmeasured(scenario(tenant, worker=worker, warm_up_s=2), "round_robin_ttl_cancel")
    assert report.work.utilisation == pytest.approx(1.0, abs=0.002)
    assert report.work.useful_s < report.work.busy_s
