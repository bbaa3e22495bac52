"""Whose turn a slot is: the class furthest behind, then light tenants, then the level, then what is wanted."""

from __future__ import annotations

import pytest

from services.core.leases.messages import Want
from services.core.leases.turn import Claim, first, keeps

Q = 10.0


def claim(router: str, *, promised: int = 1, n: int = 1, light: int = 0, level: float = 0.0, **of: object) -> Claim:
    name, turn = str(of.get("name", "default")), float(str(of.get("turn", 0.0)))
    return Claim(router, promised, n, Want(name, n, light, level, turn))


@pytest.mark.parametrize(
    ("claims", "winner"),
    [
        ([claim("a", level=50.0), claim("b", level=20.0)], "b"),
        ([claim("a", level=25.0, promised=1), claim("b", level=20.0, promised=3)], "a"),  # within a quantum: by share
        ([claim("a", level=30.0, promised=1), claim("b", level=20.0, promised=3)], "a"),
        ([claim("a", level=31.0, promised=1), claim("b", level=20.0, promised=3)], "b"),  # beyond it: by level
        ([claim("a", n=2, promised=2), claim("b", n=6, promised=2)], "b"),  # it has less of what it could use
        ([claim("a", level=5.0, light=1, promised=9), claim("b", n=9)], "a"),  # light first
        ([claim("a", level=80.0, light=1, promised=9), claim("b", n=9)], "a"),  # since levels are old
        ([claim("a", level=81.0, light=1), claim("b")], "b"),  # but not for a router that is far ahead
        ([claim("a", level=9.0, light=1), claim("b", level=5.0, light=1)], "b"),
        ([claim("a", level=50.0, light=1, n=9), claim("b", light=1)], "a"),  # among light ones by share
        ([claim("a", level=81.0, light=1, n=9), claim("b", light=1)], "b"),
        ([claim("a", name="gold", turn=3.0), claim("b", name="tin", turn=2.0, level=99.0)], "b"),  # its class's turn
        ([claim("a", name="gold", light=1, turn=3.0), claim("b", name="tin", turn=2.0)], "b"),
    ],
)  # fmt: skip
def test_who_gets_the_next_slot(claims: list[Claim], winner: str) -> None:
    assert first(claims, Q).router == winner


@pytest.mark.parametrize(
    ("own", "other", "kept"),
    [
        (claim("a", level=0.0), claim("b", level=11.0), True),
        (claim("a", level=11.0), claim("b", level=0.0), False),
        (claim("a", promised=4, n=4), claim("b", promised=0, n=4), False),  # equal levels: in proportion
        (claim("a", level=10.0, promised=2, n=4), claim("b", promised=2, n=4), True),  # a quantum apart: likewise
        (claim("a", promised=2, n=6), claim("b", promised=0, n=7), True),  # 1 of 8 would be left to it, against 1 of 7
        (claim("a", promised=3, n=1), claim("b", promised=1, n=3), True),  # 2 of 4 against 2 of 4
        (claim("a", promised=2, n=4), claim("b", promised=2, n=4), True),  # a move would only turn it round
        (claim("a", promised=1), claim("b", promised=1, light=1), False),
        (claim("a", promised=9, light=1), claim("b", promised=0), True),
        (claim("a", promised=9, light=1, level=80.0), claim("b", promised=0), True),
        (claim("a", promised=9, light=1, level=81.0), claim("b", promised=0), False),
        (claim("a", promised=9, light=1), claim("b", promised=0, n=9, light=1, level=50.0), False),  # by share
        (claim("a", name="gold", turn=10.0), claim("b", name="tin", turn=0.0), True),  # within a quantum
        (claim("a", name="gold", turn=10.1), claim("b", name="tin", turn=0.0), False),
    ],
)  # fmt: skip
def test_whether_a_router_keeps_the_slot_of_its_request_that_ended(own: Claim, other: Claim, kept: bool) -> None:
    assert keeps(own, other, Q) is kept


def test_of_two_routers_at_one_level_a_slot_does_not_go_to_and_fro() -> None:
    for promised in range(1, 8):
        here, there = claim("a", promised=promised, n=8), claim("b", promised=8 - promised, n=8)
        if not keeps(here, there, Q):
            moved = claim("b", promised=9 - promised, n=8)
            assert keeps(moved, claim("a", promised=promised - 1, n=8), Q)
