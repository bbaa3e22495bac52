"""Gaps between arrivals, with mean 1: the shape of a request stream without its rate.

The coefficient of variation of the gaps, cv, is their standard deviation over their mean: 0 for `paced`, 1 for
`poisson`, above 1 for bursts with silences between them. Real traffic is bursty. BurstGPT (arXiv 2401.17644) models it
with Gamma gaps. ServeGen (arXiv 2505.09999) finds that no single law fits all production models and that Gamma or
Weibull fit many better than the exponential law; its example of a bursty client has a cv of 2.

    Gamma     shape k = 1 / cv ** 2
    Weibull   shape k with  cv ** 2 = G(1 + 2/k) / G(1 + 1/k) ** 2 - 1,  G being the gamma function

At equal cv a Gamma stream has more gaps near 0, and a Weibull stream a longer tail.

A run begins at a random point of the stream. Its first gap is the rest of a gap drawn in proportion to its length
(equilibrium renewal process). Otherwise each tenant would begin with a burst and send (cv ** 2 - 1) / 2 requests too
many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from random import Random

Draw = Callable[[], float]


def gaps(arrivals: str, cv: float, chance: Random) -> Draw:
    return _LAWS[arrivals](cv, chance)


def weibull_shape(cv: float) -> float:
    """The Weibull shape with this cv, found by bisection: cv falls as the shape grows."""
    low, high = 0.05, 200.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _weibull_cv(middle) > cv else (low, middle)
    return low


def _weibull_cv(shape: float) -> float:
    log_square = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
    return math.sqrt(math.expm1(log_square))


def _poisson(_: float, chance: Random) -> Draw:
    return partial(chance.expovariate, 1.0)  # the rest of an exponential gap is exponential


def _paced(_: float, chance: Random) -> Draw:
    return repeat(1.0).__next__


def _gamma(cv: float, chance: Random) -> Draw:
    shape = cv**-2
    longer = chance.gammavariate(shape + 1, 1 / shape)  # a Gamma gap drawn in proportion to its length
    return _after(chance.random() * longer, partial(chance.gammavariate, shape, 1 / shape))


def _weibull(cv: float, chance: Random) -> Draw:
    shape = weibull_shape(cv)
    scale = math.exp(-math.lgamma(1 + 1 / shape))
    longer = scale * chance.gammavariate(1 + 1 / shape, 1.0) ** (1 / shape)  # a Weibull gap, by its length
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
