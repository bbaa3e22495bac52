"""A short soak of the real stack: every process is looked at, the tasks of its loop are told, and nothing is kept."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.judging.answers import Verdict
from loadtests.runs.judged import has_held, lines
from loadtests.runs.soak.__main__ import play, result
from tests.real.loadtests.standing import no_stack

MINUTES = 0.2


def test_a_short_soak_looks_at_every_process_and_nothing_is_kept() -> None:
    if why := no_stack():
        pytest.skip(why)
    soak = asyncio.run(play(MINUTES, say=lambda text: None))
    found = result(soak)
    told = "\n".join(lines(found))
    assert has_held(found), told
    assert soak.outcomes.verdicts[Verdict.RIGHT] > 0, told
    assert soak.outcomes.verdicts[Verdict.REFUSED] > 0, told  # those in too much of a hurry
    assert set(soak.samples) == {"PostgreSQL", "Valkey", "worker-0", "worker-1", "worker-2", "retrieval", "router"}
    for name, samples in soak.samples.items():
        assert all(one.memory_mb > 0 and one.descriptors > 0 for one in samples), name
        has_a_loop = name not in ("PostgreSQL", "Valkey")
        assert any(one.tasks is not None for one in samples) is has_a_loop, name
