"""A killed router of three behind HAProxy hits its own open requests only."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.runs.failover.__main__ import play
from loadtests.runs.matrix.subjects import haproxy


@pytest.mark.skipif(haproxy() is None, reason="HAProxy is not installed")
def test_a_killed_router_hits_its_own_open_requests_only() -> None:
    found = asyncio.run(play(2, 1, lambda _: None, before_s=4.0))
    assert len(found.kills) == 2
    assert found.stray == []
    assert found.unsaved == []
    assert found.answered > 0
