"""A rolling restart of real routers behind HAProxy loses no request."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.runs.matrix.subjects import haproxy
from loadtests.runs.rolling import report
from loadtests.runs.rolling.run import play

RESTARTS = 2


@pytest.mark.skipif(haproxy() is None, reason="HAProxy is not installed")
def test_a_rolling_restart_loses_no_request() -> None:
    result = asyncio.run(play(RESTARTS, 1, lambda _: None))
    assert result.held, "\n".join(report.lines(result))
    assert result.restarts == RESTARTS
    assert result.streamed > 0
