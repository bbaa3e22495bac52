"""The short version of the long run: a thousand questions, and nobody gets another's answer or half of one."""

from __future__ import annotations

import asyncio

from loadtests.runs.nonces import report
from loadtests.runs.nonces.__main__ import SHORT
from loadtests.runs.nonces.judge import Verdict
from loadtests.runs.nonces.run import play


def test_a_thousand_questions_among_dying_and_evil_workers_get_their_own_answers_or_an_honest_no() -> None:
    result = asyncio.run(play(SHORT, seed=3, say=lambda text: None))
    told = "\n".join(report.lines(result))
    assert result.held, told
    assert result.tally.requests == SHORT
    assert result.tally.verdicts[Verdict.RIGHT] > SHORT / 20, told  # a slow machine is refused more, and lied to never
    assert result.troubles["kill -9"] >= 1
    assert result.troubles["SIGSTOP"] >= 1
    assert result.troubles["tricks among them"] >= 1, told
    page = report.page(result, command="a test", machine="a machine")
    assert f"| asked | {SHORT:,} |" in page
