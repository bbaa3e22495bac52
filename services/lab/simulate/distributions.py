"""Distributions of sizes and times: a kind, its parameters in the field's own unit, and optional limits.

A bare number is a constant. A log-normal is given by its median and its 95th percentile, since those are what people
read off a dashboard; sigma = ln(p95 / median) / 1.645.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Sampler = Callable[[], float]
Value = Annotated[float, Field(ge=0, le=1e7)]
Positive = Annotated[float, Field(gt=0, le=1e7)]

Z95 = 1.6448536269514722


class Model(BaseModel):
    """Every part of a scenario: frozen, and an unknown name is a fault."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Limited(Model):
    """A distribution whose samples are kept within [`least`, `most`]."""

    least: Value = 0.0
    most: Value = 1e7

    @model_validator(mode="after")
    def _limits_are_in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least ({self.least:g}) is above most ({self.most:g})")
        return self

    def _limited(self, draw: Sampler) -> Sampler:
        least, most = self.least, self.most

        def sample() -> float:
            value = draw()
            return least if value < least else most if value > most else value

        return sample


class Constant(Model):
    """Always the same."""

    kind: Literal["constant"]
    value: Value

    def sampler(self, chance: random.Random) -> Sampler:
        value = self.value
        return lambda: value


class Uniform(Model):
    """Anything between `low` and `high`."""

    kind: Literal["uniform"]
    low: Value
    high: Value

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) is above high ({self.high:g})")
        return self

    def sampler(self, chance: random.Random) -> Sampler:
        low, width, draw = self.low, self.high - self.low, chance.random
        return lambda: low + width * draw()


class Exponential(Limited):
    """Without memory: many small values, a few large ones."""

    kind: Literal["exponential"]
    mean: Positive

    def sampler(self, chance: random.Random) -> Sampler:
        mean, draw, log = self.mean, chance.random, math.log
        return self._limited(lambda: -mean * log(1.0 - draw()))


class LogNormal(Limited):
    """The usual shape of answer lengths: heavy on the right."""

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

    def sampler(self, chance: random.Random) -> Sampler:
        mu, sigma, gauss, exp = math.log(self.median), self.sigma, chance.gauss, math.exp
        return self._limited(lambda: exp(gauss(mu, sigma)))


class Choice(Model):
    """One of a few values, by weight; equal weights by default."""

    kind: Literal["choice"]
    values: tuple[Value, ...] = Field(min_length=1, max_length=1000)
    weights: tuple[Positive, ...] = ()

    @model_validator(mode="after")
    def _as_many_weights_as_values(self) -> Self:
        if self.weights and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values need as many weights, got {len(self.weights)}")
        return self

    def sampler(self, chance: random.Random) -> Sampler:
        values, draw = self.values, chance.random
        edges = list(accumulate(self.weights or [1.0] * len(values)))
        total, last = edges[-1], len(values) - 1
        return lambda: values[min(last, bisect(edges, draw() * total))]


def _number_is_constant(given: Any) -> Any:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"kind": "constant", "value": given}
    return given


Distribution = Annotated[
    Annotated[Constant | Uniform | Exponential | LogNormal | Choice, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant),
]


def constant(value: float) -> Constant:
    """A distribution that is a number."""
    return Constant(kind="constant", value=value)
