"""What may be taken in all and by one source, and what a source is."""

from __future__ import annotations

import resource
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.budget import ALL_SOURCES, SOURCE, Budget, source_of
from services.runtime.descriptors import SPARE, connections_allowed, raise_limit

SOURCES = st.sampled_from([None, b"a", b"b", b"c"])


@given(st.lists(st.tuples(SOURCES, st.integers(0, 60), st.booleans())), st.integers(1, 100), st.integers(1, 100))
def test_no_more_is_taken_than_may_be_and_all_of_it_comes_back(
    steps: list[tuple[bytes | None, int, bool]], most: int, max_per_source: int
) -> None:
    budget, held = Budget(most, max_per_source), Counter[bytes | None]()
    for source, amount, takes in steps:
        if not takes:
            amount = min(amount, held[source])
            budget.release(source, amount)
            held[source] -= amount
        else:
            bound = budget.reserve(source, amount)
            fits = sum(held.values()) + amount <= most
            fits_source = source is None or held[source] + amount <= min(most, max_per_source)
            assert bound == (None if fits and fits_source else SOURCE if fits else ALL_SOURCES)
            held[source] += amount if bound is None else 0
        assert budget.taken == sum(held.values()) <= most
        for one in (b"a", b"b", b"c"):
            assert budget.held_by(one) == held[one] <= max_per_source
    for source, amount in held.items():
        budget.release(source, amount)
    assert budget.taken == 0
    assert not budget._by_source


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        (("192.0.2.7", 1234), bytes([192, 0, 2, 7])),
        (("2001:db8:1:2:3:4:5:6", 1234, 0, 0), bytes.fromhex("20010db800010002")),
        (("2001:db8:1:2:ffff::1", 1, 0, 0), bytes.fromhex("20010db800010002")),
        (("fe80::1%eth0", 1, 0, 2), bytes.fromhex("fe80000000000000")),
        (("::ffff:192.0.2.7", 1, 0, 0), bytes([192, 0, 2, 7])),
        ("", None),
        (b"\0abstract", None),
        (None, None),
        (("no address", 1), None),
    ],
)
def test_a_source_is_an_address_or_a_network_of_64_bits(peer: object, source: bytes | None) -> None:
    assert source_of(peer) == source


@pytest.mark.parametrize(
    ("limits", "raised", "allowed"),
    [
        ((1024, 20_000), 4096 + 100 + SPARE, 4096),
        ((1024, 1024), None, 1024 - 100 - SPARE),
        ((1024, 2048), 2048, 2048 - 100 - SPARE),
        ((128, 128), None, 128 - 64 - SPARE),
        ((10, 10), None, 1),
        ((20_000, 20_000), None, 4096),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, 4096),
        ((1024, resource.RLIM_INFINITY), 4096 + 100 + SPARE, 4096),
    ],
)
def test_connections_are_held_to_the_descriptors_and_the_limit_is_raised_to_what_they_need(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: int | None, allowed: int
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: calls.append(to))
    assert connections_allowed(4096, 100) == allowed
    assert calls == ([] if raised is None else [(raised, limits[1])])


def test_a_limit_that_the_system_does_not_raise_is_gone_by_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, to: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit(5000) == 256
