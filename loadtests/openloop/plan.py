"""A plan: who asks, how often, how much, and by when. Data, checked when loaded.

Every number has a bound, so that no typing error turns a laptop into a weapon or a test into an evening.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

ARRIVALS = ("poisson", "paced")
ROUTES = ("completions", "chat", "ask", "generate")
RETRIES = ("none", "immediate", "obey")
MAX_SECONDS = 1800
MAX_PER_S = 20_000
MAX_ASKS = 2_000_000
MAX_TENANTS = 1000
MAX_TOKENS = 32_768
MAX_DEADLINE_MS = 120_000
AFTER_DEADLINE_MS = 5_000  # how much longer than its deadline a client waits that names no patience


def _within(what: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{what} is {value!r}; a number from {least:g} to {most:g} was expected")


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} is {value!r}; one of {', '.join(known)} was expected")


@dataclass(frozen=True, slots=True)
class Step:
    """From this moment on so many arrivals a second."""

    from_s: float
    per_s: float

    def __post_init__(self) -> None:
        _within("from_s", self.from_s, 0, MAX_SECONDS)
        _within("per_s", self.per_s, 0, MAX_PER_S)


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens: `median` exactly when `sigma` is 0, else lognormal with that median, cut off at `most`."""

    median: float
    sigma: float = 0.0
    most: int = MAX_TOKENS

    def __post_init__(self) -> None:
        _within("most", self.most, 1, MAX_TOKENS)
        _within("median", self.median, 1, self.most)
        _within("sigma", self.sigma, 0, 4)


@dataclass(frozen=True, slots=True)
class Retry:
    """What a client does that is not served: `most` further tries, at once or when the refusal says."""

    mode: str = "none"
    most: int = 3

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, RETRIES)
        _within("most", self.most, 0, 10)


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant's traffic. `stream` is the share of requests that ask for a stream; `connections` bounds sockets."""

    name: str
    steps: tuple[Step, ...]
    arrivals: str = "poisson"
    prompt_tokens: Size = Size(16)
    answer_tokens: Size = Size(4)
    deadline_ms: float = 1000.0
    patience_ms: float = 0.0
    stream: float = 0.0
    retry: Retry = Retry()
    connections: int = 4096
    key: str = ""

    def __post_init__(self) -> None:
        if not self.name.isascii() or not self.name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"name is {self.name!r}; letters, digits, dashes and underscores were expected")
        if not self.steps or list(self.steps) != sorted(self.steps, key=lambda step: step.from_s):
            raise ValueError("steps: at least one was expected, in the order of their from_s")
        _one_of("arrivals", self.arrivals, ARRIVALS)
        _within("deadline_ms", self.deadline_ms, 1, MAX_DEADLINE_MS)
        _within("patience_ms", self.patience_ms, 0, 2 * MAX_DEADLINE_MS)
        _within("stream", self.stream, 0, 1)
        _within("connections", self.connections, 1, 16_384)
        if not self.key.isascii() or not (self.key.isprintable() and " " not in self.key):
            raise ValueError("key: printable ASCII without spaces was expected")

    @property
    def waits_s(self) -> float:
        """How long one try is waited for before the client gives up."""
        return (self.patience_ms or self.deadline_ms + AFTER_DEADLINE_MS) / 1000

    def expected(self, seconds: float) -> float:
        """How many arrivals are to be expected in a run of this length."""
        ends = [*(step.from_s for step in self.steps[1:]), math.inf]
        spans = (
            max(0.0, min(end, seconds) - step.from_s) * step.per_s for step, end in zip(self.steps, ends, strict=True)
        )
        return sum(spans)


@dataclass(frozen=True, slots=True)
class Plan:
    """A run. Arrivals from `warmup_s` to `cooldown_s` before the end are counted; all are sent and all are judged.

    `late_ms`: a request sent later than this after its intended time was sent late by the generator itself; a run with
    more than `max_late_share` of those measured this machine and not the server. `grace_ms` is the way back: a whole
    answer that arrives later than its deadline and this much more must have been *sent* after its deadline.
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
        _within("seconds", self.seconds, 0.1, MAX_SECONDS)
        _within("seed", self.seed, 0, 2**32)
        _within("warmup_s", self.warmup_s, 0, self.seconds)
        _within("cooldown_s", self.cooldown_s, 0, self.seconds - self.warmup_s)
        _within("late_ms", self.late_ms, 1, 60_000)
        _within("max_late_share", self.max_late_share, 0, 1)
        _within("grace_ms", self.grace_ms, 0, 10_000)
        _one_of("route", self.route, ROUTES)
        _within("the number of tenants", len(self.tenants), 1, MAX_TENANTS)
        _within("the expected number of requests", self.expected, 0, MAX_ASKS)
        if len({tenant.name for tenant in self.tenants}) < len(self.tenants):
            raise ValueError("two tenants have the same name")
        if self.route == "generate" and any(tenant.stream for tenant in self.tenants):
            raise ValueError("route generate has whole answers only: leave `stream` out")

    @property
    def expected(self) -> float:
        """How many requests are to be expected, retries not counted."""
        return sum(tenant.expected(self.seconds) for tenant in self.tenants)

    @property
    def window(self) -> tuple[float, float]:
        """From when to when arrivals count, in seconds after the start."""
        return self.warmup_s, self.seconds - self.cooldown_s


def load(path: Path) -> Plan:
    """Read a plan from TOML. Raises ValueError that says what is wrong with it."""
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse(raw: Mapping[str, Any]) -> Plan:
    """A plan from what TOML or JSON gives."""
    tenants = tuple(_tenant(each) for each in raw.get("tenants", ()))
    return _made(Plan, {**raw, "tenants": tenants})


def _tenant(raw: Mapping[str, Any]) -> Tenant:
    values = {name: _READERS.get(name, _as_is)(value) for name, value in raw.items() if name != "per_s"}
    if "per_s" in raw:
        values["steps"] = (Step(0, raw["per_s"]),)
    try:
        return _made(Tenant, values)
    except ValueError as error:
        raise ValueError(f"tenant {raw.get('name', '?')}: {error}") from None


def _as_is(value: Any) -> Any:
    return value


def _size(raw: Any) -> Size:
    return _made(Size, raw) if isinstance(raw, Mapping) else Size(raw)


def _steps(raw: Any) -> tuple[Step, ...]:
    return tuple(_made(Step, step) for step in raw)


def _retry(raw: Any) -> Retry:
    return _made(Retry, raw)


_READERS: dict[str, Callable[[Any], Any]] = {
    "steps": _steps,
    "prompt_tokens": _size,
    "answer_tokens": _size,
    "retry": _retry,
}

Made = TypeVar("Made", Plan, Tenant, Step, Size, Retry)


def _made(kind: type[Made], raw: Mapping[str, Any]) -> Made:
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"{', '.join(unknown)}: unknown here; known are {', '.join(sorted(known))}")
    try:
        return kind(**raw)
    except TypeError as error:
        raise ValueError(str(error).replace("__init__()", kind.__name__.lower())) from None
