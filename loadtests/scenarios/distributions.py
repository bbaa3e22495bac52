"""Distributions of sizes and times: a kind, its parameters in the field's unit, and optional limits.

A bare number is a constant. Samplers are generators' `__next__`, because a simulated request takes half a dozen draws.
A log-normal is given by its median and 95th percentile, which dashboards show; sigma = ln(p95 / median) / 1.645.
"""

from __future__ import annotations

import math
import random
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate, repeat
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Sampler = Callable[[], float]
MAX_VALUE = 1e7
Value = Annotated[float, Field(ge=0, le=MAX_VALUE)]
Positive = Annotated[float, Field(gt=0, le=MAX_VALUE)]

Z95 = 1.6448536269514722


class Model(BaseModel):
    """Base of every part of a scenario: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Limited(Model):
    """A distribution with samples limited to [`min`, `max`]."""

    min: Value = 0.0
    max: Value = MAX_VALUE

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min:g}) is above max ({self.max:g})")
        return self

    def _limited(self, values: Iterator[float]) -> Sampler:
        if self.min == 0.0 and self.max == MAX_VALUE:
            return values.__next__
        low, high = self.min, self.max
        return (low if value < low else high if value > high else value for value in values).__next__


class Constant(Model):
    kind: Literal["constant"]
    value: Value

    @property
    def mean(self) -> float:
        return self.value

    @property
    def median(self) -> float:
        return self.value

    def sampler(self, chance: random.Random) -> Sampler:
        return repeat(self.value).__next__


class Uniform(Model):
    kind: Literal["uniform"]
    low: Value
    high: Value

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) is above high ({self.high:g})")
        return self

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def median(self) -> float:
        return self.mean

    def sampler(self, chance: random.Random) -> Sampler:
        low, width = self.low, self.high - self.low
        return (low + width * share for share in iter(chance.random, None)).__next__


class Exponential(Limited):
    """Exponential: many small values, a few large ones."""

    kind: Literal["exponential"]
    mean: Positive

    @property
    def median(self) -> float:
        """Without the limits."""
        return self.mean * math.log(2)

    def sampler(self, chance: random.Random) -> Sampler:
        mean, log = self.mean, math.log
        return self._limited(-mean * log(1.0 - share) for share in iter(chance.random, None))


class LogNormal(Limited):
    """Log-normal: the usual shape of answer lengths, with a heavy right tail."""

    kind: Literal["log_normal"]
    median: Positive
    p95: Positive

    @model_validator(mode="after")
    def _p95_is_above_the_median(self) -> Self:
        if self.p95 < self.median:
            raise ValueError(f"p95 ({self.p95:g}) is below the median ({self.median:g})")
        return self

    @property
    def sigma(self) -> float:
        return math.log(self.p95 / self.median) / Z95

    @property
    def mean(self) -> float:
        """Without the limits."""
        return self.median * math.exp(self.sigma**2 / 2)

    def sampler(self, chance: random.Random) -> Sampler:
        return self._limited(self._values(chance.random))

    def _values(self, draw: Sampler) -> Iterator[float]:
        """Two at a time, by the Box-Muller transform."""
        mu, sigma, exp, log, sqrt = math.log(self.median), self.sigma, math.exp, math.log, math.sqrt
        while True:
            angle, radius = math.tau * draw(), sigma * sqrt(-2.0 * log(1.0 - draw()))
            yield exp(mu + radius * math.cos(angle))
            yield exp(mu + radius * math.sin(angle))


class Choice(Model):
    """One of several values, by weight; weights are equal by default."""

    kind: Literal["choice"]
    values: tuple[Value, ...] = Field(min_length=1, max_length=1000)
    weights: tuple[Positive, ...] = ()

    @model_validator(mode="after")
    def _as_many_weights_as_values(self) -> Self:
        if self.weights and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values need as many weights, got {len(self.weights)}")
        return self

    @property
    def mean(self) -> float:
        weights = self.weights or [1.0] * len(self.values)
        return sum(value * weight for value, weight in zip(self.values, weights, strict=True)) / sum(weights)

    @property
    def median(self) -> float:
        pairs = sorted(zip(self.values, self.weights or [1.0] * len(self.values), strict=True))
        edges = list(accumulate(weight for _, weight in pairs))
        return pairs[bisect_left(edges, edges[-1] / 2)][0]

    def sampler(self, chance: random.Random) -> Sampler:
        values, draw = self.values, chance.random
        edges = list(accumulate(self.weights or [1.0] * len(values)))
        total, last = edges[-1], len(values) - 1
        return (values[min(last, bisect(edges, share * total))] for share in iter(draw, None)).__next__


def _number_is_constant(given: Any) -> Any:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"kind": "constant", "value": given}
    return given


Distribution = Annotated[
    Annotated[Constant | Uniform | Exponential | LogNormal | Choice, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant),
]


def constant(value: float) -> Constant:
    return Constant(kind="constant", value=value)
