"""A small world that looks like a router from the console: tenants ask, a door decides, lines take turns, slots work.

It is a picture's model and no measurement: the page is built and tested against it without a stack of processes. Its
numbers obey the rules that the page relies on (counters only rise, a request shows at the door and at its end).
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

SLOTS, WORKERS = 8, 2
BOUND = 64
SERVICE_S = 0.48  # at level 0
TOKENS = 180.0
QUANTUM = 360.0
DEADLINE_S = 2.0
MARGIN = 0.8
REMEMBERED = 2000
DECISIONS = 40
OUTCOMES = (
    "served", "tenant_queue_full", "rate_limit_exceeded", "yield", "deadline_infeasible", "deadline_expired",
    "deadline_exceeded", "no_capacity", "draining", "upstream_failed", "poison_request", "model_not_found",
    "invalid_request", "client_gone", "internal_error",
)  # fmt: skip
ANSWER_SHARES = (1.0, 1.0, 0.7, 0.45, 0.3)
SMALLER_FROM = (1.05, 1.3, 1.8, 3.0)  # the load at which each level begins


@dataclass(slots=True)
class Asked:
    id: str
    tenant: str
    arrived_s: float
    level: int
    predicted_s: float
    waiting: int
    started_s: float | None = None
    ends_s: float = 0.0
    worker: str | None = None
    outcome: str | None = None
    ended_s: float | None = None


@dataclass
class Line:
    id: str
    weight: float = 1.0
    waiting: deque[Asked] = field(default_factory=deque)
    deficit: float = 0.0
    running: int = 0
    got: float = 0.0


class World:
    """Time is what `step` is told; chance is seeded. So two worlds that are asked alike are alike."""

    def __init__(self, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.rates = {"anna": 6.0, "bela": 5.0, "chen": 4.0, "dora": 3.0}  # requests a second
        self.lines = {name: Line(name) for name in self.rates}
        self.ring = deque(self.lines)
        self.policy = {"admission": True, "fairness": True, "cancellation": True}
        self.level = 0
        self.healthy = [True] * WORKERS
        self.slow = 1.0  # a worker's service time, as a multiple
        self.running: list[Asked] = []
        self.lives: dict[str, Asked] = {}
        self.totals: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.admitted = self.degraded = 0
        self.served_tokens = self.worker_s = self.wasted_s = 0.0
        self.decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)
        self.decided = 0
        self.recent: deque[tuple[float, float]] = deque(maxlen=400)  # when served, and how long it took
        self.seq = 0
        self._ids = itertools.count(1)

    # ---- what happens

    def step(self, for_s: float) -> None:
        self.now_s += for_s
        busy = len(self.running) * for_s
        self.worker_s += busy
        self._end()
        self._expire()
        self._climb()
        for name, rate in self.rates.items():
            for _ in range(self._poisson(rate * for_s)):
                self._arrive(name)
        self._start()

    def _poisson(self, mean: float) -> int:
        left, n = mean, 0
        while (left := left - self.random.expovariate(1.0)) > 0:
            n += 1
        return n

    @property
    def capacity_per_s(self) -> float:
        return SLOTS * sum(self.healthy) / self._service_s(self.level)

    def _service_s(self, level: int) -> float:
        return SERVICE_S * (0.35 + 0.65 * ANSWER_SHARES[level]) * self.slow

    def _climb(self) -> None:
        load = sum(self.rates.values()) / (SLOTS * WORKERS / SERVICE_S)
        wanted = sum(load >= start for start in SMALLER_FROM)
        if self.random.random() < 0.02:
            self.level += (wanted > self.level) - (wanted < self.level)

    def _arrive(self, name: str) -> None:
        waiting = sum(len(line.waiting) for line in self.lines.values())
        line = self.lines.setdefault(name, Line(name))
        if name not in self.ring:
            self.ring.append(name)
        predicted_s = (len(line.waiting) * max(1, self._active()) + 1) / self.capacity_per_s
        asked = Asked(f"{next(self._ids):06x}-{name[:2]}", name, self.now_s, self.level, predicted_s, waiting)
        self._remember(asked)
        if len(line.waiting) >= BOUND:
            return self._away(asked, "tenant_queue_full", "yield", "tenant_requests")
        if self.policy["admission"] and predicted_s + self._service_s(self.level) > MARGIN * DEADLINE_S:
            return self._away(asked, "deadline_infeasible", "refuse", "deadline")
        if self.policy["admission"] and predicted_s > 0.9 and self.random.random() < 0.3:
            return self._away(asked, "yield", "yield", "standing_queue")
        line.waiting.append(asked)
        self.admitted += not self.level
        self.degraded += bool(self.level)
        return self._decide(asked, "degrade" if self.level else "admit", None)

    def _active(self) -> int:
        return sum(bool(line.waiting) for line in self.lines.values())

    def _away(self, asked: Asked, outcome: str, what: str, why: str) -> None:
        asked.outcome, asked.ended_s = outcome, self.now_s
        self.totals[outcome] += 1
        self._decide(asked, what, outcome, why)

    def _start(self) -> None:
        for number in range(WORKERS):
            name = f"worker-{number}"
            free = SLOTS - sum(one.worker == name for one in self.running)
            while self.healthy[number] and free > 0 and (asked := self._next()) is not None:
                free -= 1
                asked.worker, asked.started_s = name, self.now_s
                jitter = self.random.uniform(0.8, 1.25)
                asked.ends_s = self.now_s + self._service_s(asked.level) * jitter
                self.lines[asked.tenant].running += 1
                self.running.append(asked)

    def _next(self) -> Asked | None:
        waiting = [line for line in self.lines.values() if line.waiting]
        if not waiting:
            return None
        if not self.policy["fairness"]:
            return min(waiting, key=lambda line: line.waiting[0].arrived_s).waiting.popleft()
        for _ in range(4 * len(self.ring)):
            line = self.lines[self.ring[0]]
            if line.waiting and line.deficit >= TOKENS:
                line.deficit -= TOKENS
                return line.waiting.popleft()
            if not line.waiting:
                line.deficit = 0.0
            self.ring.rotate(-1)
            self.lines[self.ring[0]].deficit += QUANTUM * self.lines[self.ring[0]].weight
        return None

    def _expire(self) -> None:
        if not self.policy["cancellation"]:
            return
        for line in self.lines.values():
            while line.waiting and self.now_s - line.waiting[0].arrived_s >= DEADLINE_S:
                self._finish(line.waiting.popleft(), "deadline_expired", "expire")

    def _end(self) -> None:
        for asked in list(self.running):
            late = self.now_s - asked.arrived_s >= DEADLINE_S
            if self.now_s < asked.ends_s and not (late and self.policy["cancellation"]):
                continue
            self.running.remove(asked)
            self.lines[asked.tenant].running -= 1
            if late:
                self.wasted_s += self.now_s - (asked.started_s or self.now_s)
                self._finish(asked, "deadline_exceeded", "late")
            else:
                self.recent.append((self.now_s, self.now_s - asked.arrived_s))
                self.served_tokens += TOKENS
                self._finish(asked, "served", "served")

    def _finish(self, asked: Asked, outcome: str, what: str) -> None:
        asked.outcome, asked.ended_s = outcome, self.now_s
        self.totals[outcome] += 1
        self._decide(asked, what, outcome)

    def _remember(self, asked: Asked) -> None:
        self.lives[asked.id] = asked
        if len(self.lives) > REMEMBERED:
            del self.lives[next(iter(self.lives))]

    def _decide(self, asked: Asked, what: str, outcome: str | None, why: str = "") -> None:
        self.decided += 1
        waited_s = None if asked.started_s is None else asked.started_s - asked.arrived_s
        self.decisions.append({
            "n": self.decided, "id": asked.id, "at_ms": self.now_s * 1000, "tenant": asked.tenant, "what": what,
            "outcome": outcome, "level": asked.level, "why": why, "predicted_ms": round(asked.predicted_s * 1000, 1),
            "wait_ms": None if waited_s is None else round(waited_s * 1000, 1),
        })  # fmt: skip
