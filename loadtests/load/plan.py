"""A plan: tenants, rates, sizes and deadlines, all bounded and validated. `planfile` reads one from a file."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtests.scenarios.bounds import one_of, within
from loadtests.scenarios.distributions import Distribution, constant
from loadtests.scenarios.model import Retries

ARRIVALS = ("poisson", "paced", "gamma", "weibull", "recorded")
BURSTY = ("gamma", "weibull")
ROUTES = ("completions", "chat", "ask", "generate")
MAX_RETRIES = 10
NO_RETRIES = Retries()
PROMPT_TOKENS, ANSWER_TOKENS = constant(16), constant(4)
MAX_SECONDS = 1800
MAX_PER_S = 20_000
MAX_ASKS = 2_000_000
MAX_TENANTS = 1000
MAX_TOKENS = 32_768
MAX_DEADLINE_MS = 120_000
MAX_CV = 20.0
AFTER_DEADLINE_MS = 5_000  # added to the deadline if a client has no patience of its own


@dataclass(frozen=True, slots=True)
class Step:
    """`per_s` arrivals a second from this moment on."""

    from_s: float
    per_s: float

    def __post_init__(self) -> None:
        within("from_s", self.from_s, 0, MAX_SECONDS)
        within("per_s", self.per_s, 0, MAX_PER_S)


class Recorded(NamedTuple):
    """One request of a trace, at its second of the run."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant's traffic. `stream` is the share of streamed requests; `connections` bounds sockets.

    Sizes are drawn as in a scenario, up to `MAX_TOKENS`. Published laws: prompts are log-normal with a heavy tail,
    answers exponential (ServeGen, arXiv 2505.09999).

    `cv` is the coefficient of variation of bursty gaps. `deadline_per_token_ms` gives long answers more time. With
    `recorded`, times and sizes come from a trace.
    """

    name: str
    steps: tuple[Step, ...] = ()
    arrivals: str = "poisson"
    prompt_tokens: Distribution = PROMPT_TOKENS
    answer_tokens: Distribution = ANSWER_TOKENS
    deadline_ms: float = 1000.0
    client_timeout_ms: float = 0.0
    stream: float = 0.0
    retries: Retries = NO_RETRIES
    connections: int = 4096
    key: str = ""
    cv: float = 1.0
    deadline_per_token_ms: float = 0.0
    recorded: tuple[Recorded, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.name.isascii() or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"name is {self.name!r}; letters, digits, dashes and underscores were expected")
        self._check_arrivals()
        within("prompt_tokens, their mean,", self.prompt_tokens.mean, 1, MAX_TOKENS)
        within("answer_tokens, their mean,", self.answer_tokens.mean, 1, MAX_TOKENS)
        within("deadline_ms", self.deadline_ms, 1, MAX_DEADLINE_MS)
        within("deadline_per_token_ms", self.deadline_per_token_ms, 0, MAX_DEADLINE_MS)
        within("client_timeout_ms", self.client_timeout_ms, 0, 2 * MAX_DEADLINE_MS)
        within("stream", self.stream, 0, 1)
        within("retries.attempts", self.retries.attempts, 0, MAX_RETRIES)
        within("connections", self.connections, 1, 16_384)
        if not self.key.isascii() or not (self.key.isprintable() and " " not in self.key):
            raise ValueError("key: printable ASCII without spaces was expected")

    def _check_arrivals(self) -> None:
        one_of("arrivals", self.arrivals, ARRIVALS)
        if (self.arrivals == "recorded") != bool(self.recorded):
            raise ValueError("arrivals are `recorded` where there are recorded requests, and only there")
        if self.recorded:
            busiest = max(Counter(int(request.at_s) for request in self.recorded).values())
            within("the number of requests in the busiest second", busiest, 0, MAX_PER_S)
        elif not self.steps or list(self.steps) != sorted(self.steps, key=lambda step: step.from_s):
            raise ValueError("steps: at least one was expected, in the order of their from_s")
        if self.arrivals in BURSTY:
            within("cv", self.cv, 0.05, MAX_CV)
        elif self.cv != 1:
            raise ValueError(f"cv is for arrivals that are {' or '.join(BURSTY)}")

    def deadline_of(self, answer_tokens: int) -> float:
        """The deadline of an answer with this many tokens, in milliseconds."""
        return min(self.deadline_ms + self.deadline_per_token_ms * answer_tokens, MAX_DEADLINE_MS)

    @property
    def waits_s(self) -> float:
        """Seconds after which a client gives up a try for the shortest answer."""
        return self.waits_for_s(0)

    def waits_for_s(self, answer_tokens: int) -> float:
        """Seconds after which a client gives up a try for an answer of this many tokens."""
        return (self.client_timeout_ms or self.deadline_of(answer_tokens) + AFTER_DEADLINE_MS) / 1000

    def expected(self, seconds: float) -> float:
        """Expected arrivals in a run of this many seconds."""
        if self.recorded:
            return sum(request.at_s < seconds for request in self.recorded)
        ends = [*(step.from_s for step in self.steps[1:]), math.inf]
        spans = (
            max(0.0, min(end, seconds) - step.from_s) * step.per_s for step, end in zip(self.steps, ends, strict=True)
        )
        return sum(spans)


@dataclass(frozen=True, slots=True)
class Plan:
    """A run. Arrivals between `warmup_s` and `cooldown_s` before the end are counted; all are sent and judged.

    A request sent more than `late_ms` after its intended time was late by the generator's fault. If more than
    `max_late_share` of all were, the run measured this machine and is not valid. `grace_ms` covers the way back: a
    whole answer later than its deadline plus this must have been *sent* after the deadline.
    """

    seconds: float
    tenants: tuple[Tenant, ...]
    route: str = "completions"
    seed: int = 1
    warmup_s: float = 3.0
    cooldown_s: float = 3.0
    late_ms: float = 20.0
    max_late_share: float = 0.05
    grace_ms: float = 50.0

    def __post_init__(self) -> None:
        within("seconds", self.seconds, 0.1, MAX_SECONDS)
        within("seed", self.seed, 0, 2**32)
        within("warmup_s", self.warmup_s, 0, self.seconds)
        within("cooldown_s", self.cooldown_s, 0, self.seconds - self.warmup_s)
        within("late_ms", self.late_ms, 1, 60_000)
        within("max_late_share", self.max_late_share, 0, 1)
        within("grace_ms", self.grace_ms, 0, 10_000)
        one_of("route", self.route, ROUTES)
        within("the number of tenants", len(self.tenants), 1, MAX_TENANTS)
        within("the expected number of requests", self.expected, 0, MAX_ASKS)
        if len({tenant.name for tenant in self.tenants}) < len(self.tenants):
            raise ValueError("two tenants have the same name")
        if self.route == "generate" and any(tenant.stream for tenant in self.tenants):
            raise ValueError("route generate has whole answers only: leave `stream` out")

    @property
    def expected(self) -> float:
        """Expected requests without retries."""
        return sum(tenant.expected(self.seconds) for tenant in self.tenants)

    @property
    def window(self) -> tuple[float, float]:
        """Begin and end of the counted arrivals, in seconds after the start."""
        return self.warmup_s, self.seconds - self.cooldown_s
