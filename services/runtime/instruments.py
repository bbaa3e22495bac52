"""Counters and histograms for one thread: what prometheus_client's do, without its locks.

Everything that a request counts is counted on the event loop's thread, where a lock guards against nobody; and a
histogram of prometheus_client takes one for the sum and looks through its buckets in order. Names, labels and text are
the same: a family here is a `Collector` that is asked when it is scraped, on the same thread, and it can write its part
of the page itself, to the byte as prometheus_client would (`exposition`). `python -m loadtests.bench edge` measures it.

The signatures are prometheus_client's as far as they go, so that an import is all that changes. Keep the children:
`labels()` costs more than an increment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import fsum, inf
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Child = TypeVar("Child", "CounterChild", "HistogramChild")
SHORT = 1_000_000
"""From here on Go writes a number with an exponent, and so does Prometheus."""


class CounterChild:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count; never down."""
        self.value += amount

    def __repr__(self) -> str:
        return f"<Tally {self.value:g}>"


class HistogramChild:
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
        self._forms: dict[tuple[str, ...], str] = {}  # the lines of each series without their numbers; one for each
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

    def write(self, page: list[str]) -> None:
        """The family's lines, as prometheus_client writes them."""
        raise NotImplementedError

    def _head(self, name: str, kind: str) -> str:
        documentation = self._documentation.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {name} {documentation}\n# TYPE {name} {kind}\n"

    def _form(self, name: str, number: str, values: Sequence[str], **more: str) -> str:
        """A line of a series, and where its number stands: `number` is what `%` makes it of."""
        labels = sorted([*zip(self._labelnames, values, strict=True), *more.items()])
        written = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels).replace("%", "%%")
        return f"{name}{{{written}}} {number}\n" if written else f"{name} {number}\n"

    def _new(self) -> Child:
        raise NotImplementedError


class Counter(_Family[CounterChild]):
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
        for values, instruments in self._children.items():
            family.add_metric(values, instruments.value)
        yield family

    def write(self, page: list[str]) -> None:
        name, forms = f"{self._name.removesuffix('_total')}_total", self._forms
        page.append(self._head(name, "counter"))
        for values, instruments in self._children.items():
            form = forms.get(values)
            if form is None:
                form = forms[values] = self._form(name, "%s", values)
            page.append(form % _number(instruments.value))

    def _new(self) -> CounterChild:
        return CounterChild()


class Histogram(_Family[HistogramChild]):
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

    def write(self, page: list[str]) -> None:
        forms = self._forms
        page.append(self._head(self._name, "histogram"))
        for values, spread in self._children.items():
            sums = tuple(accumulate(spread.counts))
            samples = sums[-1]
            if samples >= SHORT:
                page.append(self._lines(values, "%s") % (*map(_number, (*sums, samples)), _number(spread.total)))
                continue
            form = forms.get(values)
            if form is None:
                form = forms[values] = self._lines(values, "%d.0")
            page.append(form % (*sums, samples, _number(spread.total)))

    def _lines(self, values: Sequence[str], number: str) -> str:
        """The lines of a series: its buckets, its count, its sum."""
        buckets = [self._form(f"{self._name}_bucket", number, values, le=name) for name in self._names]
        count, total = self._form(f"{self._name}_count", number, values), self._form(f"{self._name}_sum", "%s", values)
        return "".join([*buckets, count, total])

    def _new(self) -> HistogramChild:
        return HistogramChild(self._edges)


class HistogramAggregate(Histogram):
    """All series of another histogram as one, or those whose last label is `last`: added up when it is asked for.

    So nobody counts twice what is only wanted under a second name.
    """

    def __init__(
        self, name: str, documentation: str, of: Histogram, last: str | None = None, *, registry: CollectorRegistry
    ) -> None:
        self._of = of
        self._last = last
        super().__init__(name, documentation, buckets=of._edges, registry=registry)

    def collect(self) -> Iterable[Metric]:
        self._add_up()
        return super().collect()

    def write(self, page: list[str]) -> None:
        self._add_up()
        super().write(page)

    def _add_up(self) -> None:
        spread, last = self._children[()], self._last
        parts = [part for values, part in self._of._children.items() if last is None or values[-1] == last]
        if parts:
            spread.counts = [sum(counts) for counts in zip(*(part.counts for part in parts), strict=True)]
            spread.total = fsum(part.total for part in parts)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # upstream
