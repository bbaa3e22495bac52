"""A short soak of the real stack: every process is looked at, the tasks of its loop are told, and nothing is kept."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.judging.answers import Verdict
from loadtests.runs.soak import report
from loadtests.runs.soak.run import play
from tests.real.loadtests.standing import no_stack

MINUTES = 0.2


def test_a_short_soak_looks_at_every_process_and_nothing_is_kept() -> None:
    if why := no_stack():
        pytest.skip(why)
    result = asyncio.run(play(MINUTES, say=lambda text: None))
    told = "\n".join(report.lines(result))
    assert result.held, told
    assert result.heard.verdicts[Verdict.RIGHT] > 0, told
    assert result.heard.verdicts[Verdict.REFUSED] > 0, told  # those in too much of a hurry
    assert set(result.samples) == {"PostgreSQL", "Valkey", "worker-0", "worker-1", "worker-2", "retrieval", "router"}
    for name, samples in result.samples.items():
        assert all(one.memory_bytes > 0 and one.descriptors > 0 for one in samples), name
        has_a_loop = name not in ("PostgreSQL", "Valkey")
        assert any(one.tasks is not None for one in samples) is has_a_loop, name
