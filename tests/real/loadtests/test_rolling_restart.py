"""A rolling restart of real routers behind HAProxy loses no request."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.runs.judged import has_held, lines
from loadtests.runs.matrix.subjects import haproxy
from loadtests.runs.rolling.__main__ import play, result

RESTARTS = 2


@pytest.mark.skipif(haproxy() is None, reason="HAProxy is not installed")
def test_a_rolling_restart_loses_no_request() -> None:
    tally = asyncio.run(play(RESTARTS, 1, lambda _: None))
    found = result(tally)
    assert has_held(found), "\n".join(lines(found))
    assert tally.restarts == RESTARTS
    assert tally.streamed > 0
