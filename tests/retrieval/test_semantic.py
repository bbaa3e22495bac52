"""The semantic cache: the nearest question near enough, never anyone else's, and never more than its bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.retrieval.app import semantic_cache
from services.retrieval.cache import CachedResult
from services.retrieval.config import MIN_THRESHOLD, RetrievalSettings
from services.retrieval.minilm import DIMENSIONS, Floats
from services.retrieval.search_params import SearchParams
from services.retrieval.semantic import FIRST_ROWS, ROW_BYTES, Semantic
from services.runtime.settings import load
from tests.retrieval.fakes import ALL, passage

MIB = 1 << 20


def direction(degrees: float, axis: int = 0) -> Floats:
    """A unit vector in the plane of two axes, so that cosines are those of angles."""
    vector = np.zeros(DIMENSIONS, np.float32)
    vector[axis], vector[axis + 1] = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return vector


class Rig:
    """A semantic cache with a clock that is set by hand."""

    def __init__(self, *, threshold: float = 0.9, tenant_entries: int = 100, max_bytes: int = 4 * MIB) -> None:
        self.now = 1000.0
        self.cache = Semantic(
            threshold=threshold,
            stale_s=100.0,
            tenant_entries=tenant_entries,
            max_bytes=max_bytes,
            clock=lambda: self.now,
        )

    def keep(
        self,
        text: str,
        degrees: float,
        *,
        tenant: str = "demo",
        version: int = 7,
        variant: str = "5",
        size: int = 0,
        axis: int = 0,
        params: SearchParams = ALL,
    ) -> bool:
        results = [passage(text), passage("x" * size)]
        vector = direction(degrees, axis) * 3
        return self.cache.keep(
            tenant,
            version=version,
            variant=variant,
            query=text,
            vector=vector,
            results=results,
            params=params,
            ttl_s=60.0,
        )

    def nearest(
        self,
        degrees: float,
        *,
        tenant: str = "demo",
        version: int | None = 7,
        variant: str = "5",
        axis: int = 0,
        params: SearchParams = ALL,
    ) -> CachedResult | None:
        vector = direction(degrees, axis)
        return self.cache.nearest(tenant, version=version, variant=variant, vector=vector, params=params)

    def found(self, degrees: float, **asked: Any) -> str | None:
        kept = self.nearest(degrees, **asked)
        return None if kept is None else kept.results[0].text


def test_the_nearest_question_answers_if_it_is_near_enough() -> None:
    rig = Rig()
    for degrees in (0, 10, 80):
        rig.keep(f"at {degrees}", degrees)
    assert rig.found(3) == "at 0"
    assert rig.found(7) == "at 10"
    assert rig.found(10 + 25) == "at 10", "cos 25 = 0.906"
    assert rig.found(10 + 26.5) is None, "cos 26.5 = 0.895"


@pytest.mark.parametrize(
    "other", [{"tenant": "rival"}, {"version": 6}, {"version": 8}, {"version": None}, {"variant": "6"}]
)
def test_another_tenant_corpus_version_or_parameter_finds_nothing(other: dict[str, object]) -> None:
    rig = Rig()
    rig.keep("mine", 0)
    assert rig.found(0, **other) is None
    assert rig.found(0) == "mine"


def test_a_nearer_question_with_other_parameters_does_not_hide_one_with_these() -> None:
    rig = Rig()
    rig.keep("deep", 0, variant="50")
    rig.keep("shallow", 10, variant="5")
    assert (rig.found(0, variant="5"), rig.found(0, variant="50")) == ("shallow", "deep")


def test_what_looked_as_far_is_given_before_what_is_nearer_and_did_not() -> None:
    rig = Rig()
    rig.keep("near, with less effort", 0, params=SearchParams(0.5, 5))
    rig.keep("near, not so deep", 1, params=SearchParams(1.0, 4))
    rig.keep("full", 10, params=SearchParams(1.0, 5))
    kept = rig.nearest(0, params=SearchParams(1.0, 5))
    assert kept is not None
    assert (kept.results[0].text, kept.fresh) == ("full", True)
    assert rig.found(0, params=SearchParams(0.5, 5)) == "near, with less effort"
    assert rig.found(0, params=SearchParams(0.6, 4)) == "near, not so deep"


@pytest.mark.parametrize("less", [SearchParams(0.5, 5), SearchParams(1.0, 4)])
def test_what_did_not_look_as_far_is_a_fallback_and_no_more(less: SearchParams) -> None:
    rig = Rig()
    rig.keep("less", 0, params=less)
    kept = rig.nearest(0, params=SearchParams(1.0, 5))
    assert kept is not None
    assert (kept.results[0].text, kept.fresh, kept.params) == ("less", False, less)
    lesser = rig.nearest(0, params=less)
    assert lesser is not None
    assert lesser.fresh


def test_less_effort_does_not_replace_what_is_fresh_and_took_more() -> None:
    rig = Rig()
    assert rig.keep("again", 0, params=SearchParams(1.0, 5))
    assert not rig.keep("again", 0, params=SearchParams(0.5, 5))
    assert rig.nearest(0, params=SearchParams(1.0, 5)).fresh  # type: ignore[union-attr]
    rig.now += 61
    assert rig.keep("again", 0, params=SearchParams(0.5, 5)), "and it does once that is not fresh any more"
    assert rig.keep("again", 0, params=SearchParams(1.0, 5), version=8)
    assert not rig.keep("again", 0, params=SearchParams(1.0, 5), version=7)


def test_a_newer_corpus_clears_the_shelf_and_an_older_result_comes_too_late() -> None:
    rig = Rig()
    rig.keep("old", 0, version=7)
    rig.keep("new", 90, version=8)
    rig.keep("late", 45, version=7)
    assert [rig.found(degrees, version=version) for version in (7, 8) for degrees in (0, 45, 90)] == [
        None, None, None, None, None, "new",
    ]  # fmt: skip


def test_it_is_fresh_for_its_time_to_live_then_a_fallback_and_then_gone() -> None:
    rig = Rig()
    rig.keep("kept", 0)
    seen = []
    for age_s in (0.0, 59.0, 61.0, 159.0, 161.0):
        rig.now = 1000.0 + age_s
        kept = rig.nearest(0)
        seen.append(None if kept is None else (kept.age_s, kept.fresh))
    assert seen == [(0.0, True), (59.0, True), (61.0, False), (159.0, False), None]


def test_the_same_question_again_replaces_what_it_had() -> None:
    rig = Rig()
    rig.keep("again", 0)
    rig.now += 50
    rig.keep("again", 0)
    rig.now += 50
    kept = rig.nearest(0)
    assert kept is not None
    assert (kept.fresh, rig.cache.entries) == (True, 1)


def test_without_a_threshold_nothing_is_kept_or_found() -> None:
    rig = Rig(threshold=0.0)
    rig.keep("kept", 0)
    assert (rig.cache.on, rig.found(0), rig.cache.entries, rig.cache.bytes) == (False, None, 0, 0)


@pytest.mark.parametrize("broken", [0.0, math.nan, math.inf])
def test_a_vector_without_a_direction_is_neither_kept_nor_near_to_anything(broken: float) -> None:
    rig = Rig()
    vector = np.full(DIMENSIONS, broken, np.float32)
    rig.cache.keep(
        "demo", version=7, variant="5", query="q", vector=vector, results=[passage()], params=ALL, ttl_s=60.0
    )
    assert rig.cache.entries == 0
    rig.keep("kept", 0)
    assert rig.cache.nearest("demo", version=7, variant="5", vector=vector, params=ALL) is None


def test_what_is_empty_or_has_no_time_to_live_is_not_kept() -> None:
    rig = Rig()
    rig.cache.keep("demo", version=7, variant="5", query="q", vector=direction(0), results=[], params=ALL, ttl_s=60.0)
    rig.cache.keep(
        "demo", version=7, variant="5", query="q", vector=direction(0), results=[passage()], params=ALL, ttl_s=0.0
    )
    assert rig.cache.entries == 0


def test_the_question_that_was_used_least_recently_makes_room() -> None:
    rig = Rig(tenant_entries=3, threshold=0.99)
    for number in range(3):
        rig.keep(str(number), 30 * number)
    assert rig.found(0) == "0", "and it is used by that"
    rig.keep("3", 120)
    assert [rig.found(30 * number) for number in (0, 1, 2, 4)] == ["0", None, "2", "3"]


def test_the_tenant_that_was_used_least_recently_makes_room_and_one_alone_never_takes_all() -> None:
    rig = Rig(max_bytes=MIB, threshold=0.99)
    size = 10_000  # characters, four bytes each: five such entries fit in a tenant's quarter, with its vectors
    for tenant in "abc":
        for number in range(8):
            rig.keep(f"{tenant}{number}", 10 * number, tenant=tenant, size=size)
    assert rig.cache.bytes <= MIB
    assert [rig.found(70, tenant=tenant) for tenant in "abc"] == ["a7", "b7", "c7"], "each keeps its newest"
    assert rig.found(0, tenant="c") is None, "its oldest made room for its own"
    rig.found(70, tenant="a")
    for tenant in "def":
        for number in range(8):
            rig.keep(f"{tenant}{number}", 10 * number, tenant=tenant, size=size)
        rig.found(70, tenant="a")
    assert rig.found(70, tenant="a") == "a7"
    assert rig.found(70, tenant="b") is None
    assert rig.cache.bytes <= MIB


def test_an_entry_too_large_for_its_tenant_is_not_kept() -> None:
    rig = Rig(max_bytes=MIB)
    rig.keep("kept", 0)
    rig.keep("huge", 90, size=MIB)
    assert (rig.found(0), rig.found(90)) == ("kept", None)


OPERATION = st.tuples(
    st.sampled_from(["keep", "ask"]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 3),
    st.sampled_from(["5", "6"]),
    st.integers(0, 35),
    st.integers(0, 6000),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATION, max_size=60), st.integers(1, 20))
def test_whatever_is_kept_and_asked_answers_are_ones_own_and_the_bounds_hold(
    operations: list[tuple[str, str, int, str, int, int]], tenant_entries: int
) -> None:
    max_bytes = 8 * (FIRST_ROWS * ROW_BYTES + 40_000)
    rig = Rig(tenant_entries=tenant_entries, max_bytes=max_bytes)
    for kind, tenant, version, variant, step, size in operations:
        degrees = step * 10
        if kind == "keep":
            text = f"{tenant} {version} {variant} {degrees}"
            rig.keep(text, degrees, tenant=tenant, version=version, variant=variant, size=size)
        else:
            found = rig.found(degrees, tenant=tenant, version=version, variant=variant)
            if found is not None:
                *whose, at = found.split(" ")
                apart = abs(int(at) - degrees) % 360
                assert whose == [tenant, str(version), variant]
                assert math.cos(math.radians(apart)) >= 0.9 - 1e-6
        assert rig.cache.entries <= 3 * tenant_entries
        assert rig.cache.bytes <= max_bytes
        assert rig.cache.bytes == sum(shelf.bytes for shelf in rig.cache._indexes.values())


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 80), st.integers(0, 2**32 - 1))
def test_it_finds_what_comparing_with_every_kept_question_finds(count: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    vectors = chance.normal(size=(count, DIMENSIONS)).astype(np.float32)
    wanted = chance.normal(size=DIMENSIONS).astype(np.float32)
    cache = Semantic(threshold=1e-9, stale_s=1.0, tenant_entries=200, max_bytes=4 * MIB, clock=lambda: 0.0)
    for number, vector in enumerate(vectors):
        cache.keep(
            "t",
            version=1,
            variant="",
            query=str(number),
            vector=vector,
            results=[passage(str(number))],
            params=ALL,
            ttl_s=1.0,
        )
    cosines = vectors @ wanted / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wanted)
    kept = cache.nearest("t", version=1, variant="", vector=wanted, params=ALL)
    best = int(np.argmax(cosines))
    if cosines[best] > 1e-3:
        assert kept is not None
        assert cosines[int(kept.results[0].text)] == pytest.approx(cosines[best], abs=1e-5)


def test_what_lies_on_the_wrong_shelf_is_still_not_handed_out() -> None:
    rig = Rig()
    rig.keep("mine", 0)
    rig.cache._indexes["rival"] = rig.cache._indexes["demo"]
    assert rig.found(0, tenant="rival") is None
    rig.cache._indexes["demo"].version = 8
    assert rig.found(0, version=8) is None


def test_a_result_of_an_older_corpus_is_not_even_kept() -> None:
    rig = Rig()
    rig.keep("new", 0, version=8)
    rig.keep("late", 90, version=7)
    assert rig.cache.entries == 1


def test_it_is_off_unless_a_threshold_is_set_and_none_that_was_measured_to_err_can_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert semantic_cache(load(RetrievalSettings, semantic_threshold=0)) is None
    chosen = semantic_cache(load(RetrievalSettings, semantic_threshold=MIN_THRESHOLD))
    assert chosen is not None
    assert chosen.on
    with pytest.raises(SystemExit):
        load(RetrievalSettings, semantic_threshold=MIN_THRESHOLD - 0.01)
    assert "SEMANTIC_THRESHOLD" in capsys.readouterr().err
