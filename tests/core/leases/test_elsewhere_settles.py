"""When the exchange is settled: a router that has just begun does not know yet what the others do."""

from __future__ import annotations

from services.core.elsewhere import SETTLE_S, STALE_S, Elsewhere


def test_it_is_settled_once_it_has_been_fresh_for_a_second() -> None:
    elsewhere = Elsewhere(lambda: 0)
    assert not elsewhere.is_settled(0.0)
    now = 0.0
    while now < SETTLE_S:
        elsewhere.receive(now, {}, {})
        assert not elsewhere.is_settled(now)
        now += 0.2
    elsewhere.receive(now, {}, {})
    assert elsewhere.is_settled(now)


def test_a_second_is_five_exchanges() -> None:
    elsewhere = Elsewhere(lambda: 0)
    elsewhere.receive(0.0, {}, {})
    assert [elsewhere.is_settled(now) for now in (0.8, 0.99, 1.0)] == [False, False, True]


def test_a_gap_begins_it_anew() -> None:
    elsewhere = Elsewhere(lambda: 0)
    for now in (0.0, 1.0, 1.0 + STALE_S):
        elsewhere.receive(now, {}, {})
    now = 1.0 + STALE_S
    assert elsewhere.is_settled(now + STALE_S)
    assert not elsewhere.is_settled(now + STALE_S + 0.1)
    elsewhere.receive(now + STALE_S + 0.1, {}, {})
    assert not elsewhere.is_settled(now + STALE_S + 0.1)
