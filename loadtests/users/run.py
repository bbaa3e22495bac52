"""One run of a scenario: the users' shared state, and the one place where endings are judged and recorded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from time import perf_counter

from loadtests.scenarios.people import Group, Scenario
from loadtests.users.lateness import Lateness
from loadtests.users.ledger import Ledger, Row
from loadtests.users.trouble import Trouble
from loadtests.users.verdict import Verdict, excused, in_time

QUESTIONS = Path(__file__).parent / "questions.txt"


@dataclass
class Run:
    """Each user has its own seeded random source, so that two runs ask the same."""

    scenario: Scenario
    trouble: Trouble
    ledger: Ledger = field(default_factory=Ledger)
    lateness: Lateness = field(default_factory=Lateness)
    seeds: Iterator[int] = field(default_factory=count)
    began: float = field(default_factory=perf_counter)
    began_at: float = field(default_factory=lambda: datetime.now(UTC).timestamp())
    ended: float = 0.0

    def __post_init__(self) -> None:
        self.questions = QUESTIONS.read_text(encoding="utf-8").splitlines()
        self._odds = [1 / rank for rank in range(1, len(self.questions) + 1)]

    @property
    def seconds(self) -> float:
        """Duration so far, or in total."""
        return (self.ended or perf_counter()) - self.began

    def question(self, chance: random.Random) -> str:
        """A question drawn by Zipf's law: few are frequent, so a cache has hits."""
        return chance.choices(self.questions, self._odds)[0]

    def stage_name(self, at: float) -> str:
        """The stage at this moment; a request just after the end belongs to the last one."""
        stage = self.scenario.stage_at(at - self.began)
        return (stage or self.scenario.stages[-1]).name

    def settle(self, group: Group, surface: str, verdict: Verdict, began: float, took_ms: float) -> Verdict:
        """The one place where a request ends: judged by its deadline and recorded."""
        ended = began + took_ms / 1000
        away_ms = self.lateness.between(began, ended) * 1000
        verdict = in_time(verdict, took_ms - away_ms, group.deadline_ms)
        if self.trouble.felt(began, ended):
            verdict = excused(verdict)
        row = Row(self.stage_name(began), group.name, surface, verdict.kind.value, verdict.detail)
        self.ledger.record(row, began - self.began, took_ms)
        return verdict

    def finish(self) -> None:
        """End the run and its faults."""
        self.ended = perf_counter()
        self.lateness.stop()
        self.trouble.repair()
