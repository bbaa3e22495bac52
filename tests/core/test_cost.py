"""Costs, and lengths that are not known yet."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.cost import CONFIDENT_SAMPLES, FIRST_OPEN_TOKENS, LIKELY, Lengths, Weights

APART = (1, 2, 5, 10, 30, 64, 100, 300, 512, 1000, 4096)
"""Lengths of which no two share a bucket, so that answers are exact."""
seen = st.lists(st.tuples(st.sampled_from(APART), st.booleans()), min_size=CONFIDENT_SAMPLES, max_size=150)
limits = st.floats(1, 1e5)
shares = st.floats(0, 1)


def learned(samples: list[tuple[int, bool]]) -> Lengths:
    """An estimator that has seen these, and whose tables hold the last of them."""
    lengths = Lengths()
    for length, cut in samples:
        lengths.observe(length, cut=cut)
    lengths._tabulate()
    return lengths


def survival(samples: list[tuple[int, bool]]) -> dict[int, float]:
    """Kaplan and Meier's S, written as in a textbook, for samples that weigh half as much after 200 more."""
    weighed = [(length, cut, 2 ** (-age / 200)) for age, (length, cut) in enumerate(reversed(samples))]
    longer, table = 1.0, {}
    for x in sorted({length for length, _, _ in weighed}):
        at_risk = sum(w for length, _, w in weighed if length >= x)
        ended = sum(w for length, cut, w in weighed if length == x and not cut)
        longer *= 1 - ended / at_risk
        table[x] = longer if longer > 1e-9 else 0.0
    return table


def area(table: dict[int, float], limit: float) -> float:
    """Under S from 0 to the limit."""
    total, x, longer = 0.0, 0.0, 1.0
    for step, below in table.items():
        if step >= limit:
            break
        total, x, longer = total + (step - x) * longer, step, below
    return total + (limit - x) * longer


def test_cost_is_tokens_by_weight() -> None:
    assert Weights().cost(100, 50) == 200
    assert Weights(1.0, 4.0).cost(100, 50) == 300


def test_calibrated_weights_make_a_prompt_token_the_unit() -> None:
    weights = Weights.calibrated(prefill_s_per_token=0.0002, decode_s_per_token=0.001)
    assert weights.prompt == 1
    assert weights.completion == pytest.approx(5)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (-1, 2), (1, float("nan"))])
def test_a_token_cannot_be_free(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Weights(*pair)
    with pytest.raises(ValueError, match="above 0"):
        Weights.calibrated(*pair)


@given(seen, limits, shares)
def test_it_answers_as_kaplan_and_meier_would(samples: list[tuple[int, bool]], limit: float, q: float) -> None:
    lengths, table = learned(samples), survival(samples)
    assert lengths.expected(limit) == pytest.approx(area(table, limit), rel=1e-6)
    reached = {min(x, limit) for margin in (-1e-6, 1e-6) for x in _least(table, q + margin, limit)}
    assert any(lengths.at(q, limit) == pytest.approx(x) for x in reached)


def _least(table: dict[int, float], q: float, limit: float) -> Iterator[float]:
    """The least length that a share q does not exceed."""
    if q <= 0:
        yield 0.0
    yield next((x for x, longer in table.items() if longer <= 1 - q), limit)


def test_it_agrees_with_a_published_example() -> None:
    """Weeks of remission under maintained chemotherapy, eleven patients, four censored (Miller 1981)."""
    published = [(9, False), (13, False), (13, True), (18, False), (23, False), (28, True), (31, False), (34, False)]
    published += [(45, True), (48, False), (161, True)]
    lengths = learned(published * 30)
    for week, share in ((9, 0.909), (13, 0.818), (18, 0.716), (23, 0.614), (31, 0.491), (34, 0.368), (48, 0.184)):
        slope = lengths.expected(week + 1.5) - lengths.expected(week + 0.5)  # S is the slope of the area
        assert slope == pytest.approx(share, abs=0.01), week
    assert lengths.at(0.5, 1000) == pytest.approx(31)
    assert lengths.at(0.9, 1000) == 1000  # more than a tenth were never seen to end


def test_cut_answers_do_not_drag_the_estimate_down() -> None:
    """Half of all answers are cut at random limits. Ignoring that, q90 would be less than half of what it is."""
    chance, whole, honest, naive = random.Random(11), Lengths(), Lengths(), Lengths()
    for _ in range(3000):
        length, limit = chance.lognormvariate(5, 1), chance.lognormvariate(5, 1)
        whole.observe(length)
        honest.observe(min(length, limit), cut=length > limit)
        naive.observe(min(length, limit))
    assert honest.at(0.5, 1e6) == pytest.approx(whole.at(0.5, 1e6), rel=0.2)
    assert honest.at(0.9, 1e6) == pytest.approx(whole.at(0.9, 1e6), rel=0.4)
    assert naive.at(0.9, 1e6) < 0.5 * whole.at(0.9, 1e6)
    assert honest.expected(512) == pytest.approx(whole.expected(512), rel=0.1)


@given(seen, limits, shares)
def test_calling_a_sample_cut_never_lowers_an_estimate(samples: list[tuple[int, bool]], limit: float, q: float) -> None:
    ended = learned([(length, False) for length, _ in samples])
    some_cut = learned(samples)
    assert some_cut.expected(limit) >= ended.expected(limit) * (1 - 1e-9)
    assert some_cut.at(q, limit) >= ended.at(max(0.0, q - 1e-6), limit) * (1 - 1e-9)


def test_a_tenant_whose_answers_are_all_cut_is_taken_to_use_its_limit() -> None:
    lengths = learned([(64, True)] * 100)
    assert lengths.expected(512) == 512
    assert lengths.at(0.9, 512) == 512


def test_an_answer_that_never_began_teaches_nothing() -> None:
    model = Lengths()
    tenant = Lengths(model)
    for _ in range(CONFIDENT_SAMPLES):
        tenant.observe(0, cut=True)
    assert (tenant.samples, model.samples) == (0, 0)


@given(st.lists(st.integers(0, 200_000), min_size=CONFIDENT_SAMPLES, max_size=120), limits)
def test_uncut_lengths_are_kept_within_their_error(lengths_seen: list[int], limit: float) -> None:
    """The tables are built of buckets 5 % wide; the mean over a limit is that of min(length, limit)."""
    lengths = learned([(length, False) for length in lengths_seen])
    weights = [2 ** (-age / 200) for age in range(len(lengths_seen))]
    mean = sum(w * min(x, limit) for w, x in zip(weights, reversed(lengths_seen), strict=True)) / sum(weights)
    assert lengths.expected(limit) == pytest.approx(mean, rel=0.05, abs=0.5)


@given(seen, st.tuples(limits, limits), st.tuples(shares, shares))
def test_estimates_keep_to_the_limit_and_grow_with_it_and_with_caution(
    samples: list[tuple[int, bool]], limits: tuple[float, float], shares: tuple[float, float]
) -> None:
    (low, high), (less, more) = sorted(limits), sorted(shares)
    for lengths in (learned(samples), Lengths(), Lengths(prior_share=0.2), Lengths(learned(samples))):
        assert 0 <= lengths.expected(low) <= low * (1 + 1e-9)
        assert 0 <= lengths.at(less, low) <= low
        assert lengths.expected(low) <= lengths.expected(high) * (1 + 1e-9)
        assert lengths.at(less, low) <= lengths.at(more, low)
        assert lengths.at(less, low) <= lengths.at(less, high)


def test_equal_lengths_are_known_exactly() -> None:
    lengths = learned([(77, False)] * 500)
    assert [lengths.expected(512), lengths.at(0.9, 512)] == pytest.approx([77, 77])
    assert [lengths.expected(50), lengths.at(0.9, 50)] == [50, 50]


def test_a_newcomer_is_judged_by_its_model_until_it_has_20_samples() -> None:
    model = learned([(100, False)] * 50)
    tenant = Lengths(model)
    for _ in range(CONFIDENT_SAMPLES - 1):
        tenant.observe(10)
        assert not tenant.confident
    assert tenant.at(0.9, 512) == pytest.approx(100)
    tenant.observe(10)
    assert tenant.confident
    assert tenant.at(0.9, 512) == pytest.approx(10)
    assert tenant.expected(512) == pytest.approx(10)


def test_what_a_tenant_teaches_its_model_learns() -> None:
    model = Lengths()
    for _ in range(CONFIDENT_SAMPLES // 2):
        Lengths(model).observe(40)
        Lengths(model).observe(20, cut=True)
    assert model.samples == CONFIDENT_SAMPLES
    assert model.expected(512) == pytest.approx(40)


def test_with_no_model_to_ask_it_takes_a_share_of_the_limit() -> None:
    stranger = Lengths(Lengths(), prior_share=0.25)
    assert stranger.expected(400) == 100
    assert stranger.at(0.5, 400) == 100
    assert stranger.at(0.9, 400) == pytest.approx(180)
    assert Lengths().at(0.9, 400) == pytest.approx(360)


def test_a_change_of_habit_is_learned_within_a_few_hundred_answers() -> None:
    lengths = learned([(30, False)] * 5000 + [(1000, False)] * 300)
    assert lengths.at(0.5, 4096) == pytest.approx(1000)
    assert lengths.expected(4096) > 600


@pytest.mark.parametrize("before", [24, 1000])
def test_an_estimate_is_at_most_an_eighth_of_its_samples_behind_and_at_most_127(before: int) -> None:
    lengths, samples = learned([(30, False)] * before), [(30, False)] * before
    fresh = [lengths.expected(4096)]
    for _ in range(200):
        samples.append((1000, False))
        lengths.observe(1000)
        fresh.append(learned(samples).expected(4096))
        behind = min(127, len(samples) // 8)
        assert any(lengths.expected(4096) == pytest.approx(x) for x in fresh[-1 - behind :])


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_a_prior_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="prior_share"):
        Lengths(prior_share=share)


def test_its_repr_tells_what_it_knows() -> None:
    assert repr(Lengths()) == "<Lengths unsure, 0 samples>"
    assert repr(learned([(64, False)] * 30)) == "<Lengths mean 64, q90 64, 30 samples>"


# ---- answers without a limit


def test_while_few_answers_are_known_an_open_ended_one_is_planned_with_a_fixed_length() -> None:
    lengths = learned([(30, False)] * (CONFIDENT_SAMPLES - 1))
    assert (lengths.likely(), lengths.longest()) == (FIRST_OPEN_TOKENS, 0)
    lengths.observe(30)
    assert (lengths.likely(), lengths.longest()) == (30, 30)


def test_a_tenant_without_answers_plans_with_those_of_its_model() -> None:
    model = learned([(300, False)] * CONFIDENT_SAMPLES)
    assert (Lengths(model).likely(), Lengths(model).longest()) == (300, 300)


@given(seen)
def test_the_likely_length_is_the_q95_of_the_answers_and_never_beyond_the_longest_known(
    samples: list[tuple[int, bool]],
) -> None:
    lengths = learned(samples)
    longest = max(length for length, _ in samples)
    table = survival(samples)
    reached = [length for length, longer in table.items() if longer <= 1 - LIKELY + 1e-9]
    assert lengths.likely() == (reached[0] if reached else longest)
    assert lengths.longest() == longest


def test_answers_that_were_all_cut_do_not_make_the_next_one_endless() -> None:
    """Kaplan and Meier's curve stays at 1 behind them; an open-ended answer has no limit at which it would end."""
    lengths = learned([(64, True)] * 50)
    assert (lengths.likely(), lengths.expected(lengths.likely())) == (64, 64)
