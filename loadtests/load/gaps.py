"""Gaps between arrivals, with mean 1: the shape of a stream of requests, apart from its rate.

The coefficient of variation of the gaps, cv, is their standard deviation over their mean: 0 for `paced`, 1 for
`poisson`. Above 1 requests come in bursts with silences between them, and so does real traffic. BurstGPT (arXiv
2401.17644) models it with Gamma gaps; ServeGen (arXiv 2505.09999) finds that no one law fits all of its production
models, and Gamma or Weibull many of them better than the exponential one; its example of a bursty client has a cv of 2.

    Gamma     shape k = 1 / cv ** 2
    Weibull   shape k with  cv ** 2 = G(1 + 2/k) / G(1 + 1/k) ** 2 - 1,  G being the gamma function

At the same cv a Gamma stream has more gaps near 0 and a Weibull one a longer tail.

A run begins in the middle of such a stream, not at one of its requests: its first gap is what is left of one, drawn in
proportion to its length (the equilibrium renewal process). Else each tenant began with a burst, and asked (cv ** 2 -
1) / 2 times too often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from random import Random

Draw = Callable[[], float]


def gaps(arrivals: str, cv: float, chance: Random) -> Draw:
    """Draws one gap after another."""
    return _LAWS[arrivals](cv, chance)


def weibull_shape(cv: float) -> float:
    """The shape whose gaps vary so much. cv falls as the shape grows, so halving the interval finds it."""
    low, high = 0.05, 200.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _weibull_cv(middle) > cv else (low, middle)
    return low


def _weibull_cv(shape: float) -> float:
    log_square = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
    return math.sqrt(math.expm1(log_square))


def _poisson(_: float, chance: Random) -> Draw:
    return partial(chance.expovariate, 1.0)  # what is left of an exponential gap is one like it


def _paced(_: float, chance: Random) -> Draw:
    return repeat(1.0).__next__


def _gamma(cv: float, chance: Random) -> Draw:
    shape = cv**-2
    longer = chance.gammavariate(shape + 1, 1 / shape)  # a Gamma gap, drawn by its length
    return _after(chance.random() * longer, partial(chance.gammavariate, shape, 1 / shape))


def _weibull(cv: float, chance: Random) -> Draw:
    shape = weibull_shape(cv)
    scale = math.exp(-math.lgamma(1 + 1 / shape))
    longer = scale * chance.gammavariate(1 + 1 / shape, 1.0) ** (1 / shape)  # a Weibull gap, drawn by its length
    return _after(chance.random() * longer, partial(chance.weibullvariate, scale, shape))


def _after(first: float, draw: Draw) -> Draw:
    def drawn() -> Iterator[float]:
        yield first
        while True:
            yield draw()

    return drawn().__next__


_LAWS: dict[str, Callable[[float, Random], Draw]] = {
    "poisson": _poisson,
    "paced": _paced,
    "gamma": _gamma,
    "weibull": _weibull,
}
