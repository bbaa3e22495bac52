"""Counters and histograms for one thread: what prometheus_client's do, without its locks.

Everything that a request counts is counted on the event loop's thread, where a lock guards against nobody; and a
histogram of prometheus_client takes one for the sum and looks through its buckets in order. Names, labels and text are
the same, since prometheus_client writes them out: a family here is a `Collector` that is asked when it is scraped,
on the same thread. `python -m bench.edge` measures the cost of both.

The signatures are prometheus_client's as far as they go, so that an import is all that changes. Keep the children:
`labels()` costs more than an increment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Child = TypeVar("Child", "Tally", "Spread")


class Tally:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count; never down."""
        self.value += amount

    def __repr__(self) -> str:
        return f"<Tally {self.value:g}>"


class Spread:
    """One series of a histogram. `counts` has one place for each bucket, and a last one for what is beyond them."""

    __slots__ = ("_edges", "counts", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, amount: float) -> None:
        """Count one sample, in the first bucket whose edge is not below it."""
        self.counts[bisect_left(self._edges, amount)] += 1
        self.total += amount

    def __repr__(self) -> str:
        return f"<Spread of {sum(self.counts)} samples, {self.total:g} in all>"


class _Family(Collector, Generic[Child]):
    """A metric and its series, one for each combination of labels; without labels there is one from the start."""

    def __init__(self, name: str, documentation: str, labelnames: Sequence[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labelnames)
        self._children: dict[tuple[str, ...], Child] = {}
        if not self._labelnames:
            self._children[()] = self._new()
        registry.register(self)

    def labels(self, *values: object) -> Child:
        """The series of these labels' values; begins at nothing."""
        key = tuple(map(str, values))
        child = self._children.get(key)
        if child is None:
            if len(key) != len(self._labelnames):
                raise ValueError(f"{self._name} has the labels {self._labelnames}, not {len(key)} of them")
            child = self._children[key] = self._new()
        return child

    def _new(self) -> Child:
        raise NotImplementedError


class Counter(_Family[Tally]):
    """As prometheus_client's Counter."""

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        super().__init__(name, documentation, labelnames, registry)

    def inc(self, amount: float = 1.0) -> None:
        """Count, where there are no labels."""
        self._children[()].inc(amount)

    def describe(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, tally in self._children.items():
            family.add_metric(values, tally.value)
        yield family

    def _new(self) -> Tally:
        return Tally()


class Histogram(_Family[Spread]):
    """As prometheus_client's Histogram. The edges are in order, and the last bucket, which has none, is added."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._edges = tuple(map(float, buckets))
        self._names = [floatToGoString(edge) for edge in (*self._edges, inf)]  # type: ignore[no-untyped-call]  # upstream
        super().__init__(name, documentation, labelnames, registry)

    def observe(self, amount: float) -> None:
        """Count one sample, where there are no labels."""
        self._children[()].observe(amount)

    def describe(self) -> Iterable[Metric]:
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, spread in self._children.items():
            sums = zip(self._names, map(float, accumulate(spread.counts)), strict=True)
            family.add_metric(values, list(sums), spread.total)
        yield family

    def _new(self) -> Spread:
        return Spread(self._edges)
