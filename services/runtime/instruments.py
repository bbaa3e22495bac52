"""Counters and histograms of one thread, without prometheus_client's locks (decision record 039).

Names, labels, text and signatures are prometheus_client's; a scrape runs on the same thread, and a family can write its
own lines (`exposition`). Keep the children: `labels()` costs more than an increment.
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
"""From this number on Go, and so Prometheus, writes an exponent."""


class CounterChild:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add an amount, which must not be negative."""
        self.value += amount

    def __repr__(self) -> str:
        return f"<CounterChild {self.value:g}>"


class HistogramChild:
    """One series of a histogram. `counts` has one number per bucket, and a last one for samples above all edges."""

    __slots__ = ("_edges", "counts", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, amount: float) -> None:
        self.counts[bisect_left(self._edges, amount)] += 1
        self.total += amount

    def __repr__(self) -> str:
        return f"<HistogramChild of {sum(self.counts)} samples, {self.total:g} in all>"


class _Family(Collector, Generic[Child]):
    """A metric and its series, one per combination of labels. Without labels the only series exists from the start."""

    def __init__(self, name: str, documentation: str, labelnames: Sequence[str], registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labelnames)
        self._children: dict[tuple[str, ...], Child] = {}
        self._forms: dict[tuple[str, ...], str] = {}  # the text of each series, without its numbers
        if not self._labelnames:
            self._children[()] = self._new()
        registry.register(self)

    def labels(self, *values: object) -> Child:
        """The series with these label values, new at zero. Raises ValueError for another number of labels."""
        key = tuple(map(str, values))
        child = self._children.get(key)
        if child is None:
            if len(key) != len(self._labelnames):
                raise ValueError(f"{self._name} has the labels {self._labelnames}, not {len(key)} of them")
            child = self._children[key] = self._new()
        return child

    def write(self, page: list[str]) -> None:
        """Add the family's lines, as prometheus_client writes them."""
        raise NotImplementedError

    def _head(self, name: str, kind: str) -> str:
        documentation = self._documentation.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {name} {documentation}\n# TYPE {name} {kind}\n"

    def _form(self, name: str, number: str, values: Sequence[str], **more: str) -> str:
        """The text of a line; `number` is the format of its value."""
        labels = sorted([*zip(self._labelnames, values, strict=True), *more.items()])
        written = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels).replace("%", "%%")
        return f"{name}{{{written}}} {number}\n" if written else f"{name} {number}\n"

    def _new(self) -> Child:
        raise NotImplementedError


class Counter(_Family[CounterChild]):
    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        super().__init__(name, documentation, labelnames, registry)

    def inc(self, amount: float = 1.0) -> None:
        self._children[()].inc(amount)

    def describe(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family

    def write(self, page: list[str]) -> None:
        name, forms = f"{self._name.removesuffix('_total')}_total", self._forms
        page.append(self._head(name, "counter"))
        for values, child in self._children.items():
            form = forms.get(values)
            if form is None:
                form = forms[values] = self._form(name, "%s", values)
            page.append(form % _number(child.value))

    def _new(self) -> CounterChild:
        return CounterChild()


class Histogram(_Family[HistogramChild]):
    """As prometheus_client's Histogram. The edges are in ascending order; the bucket `+Inf` is added."""

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
        self._children[()].observe(amount)

    def describe(self) -> Iterable[Metric]:
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, child in self._children.items():
            cumulative = zip(self._names, map(float, accumulate(child.counts)), strict=True)
            family.add_metric(values, list(cumulative), child.total)
        yield family

    def write(self, page: list[str]) -> None:
        forms = self._forms
        page.append(self._head(self._name, "histogram"))
        for values, child in self._children.items():
            cumulative = tuple(accumulate(child.counts))
            samples = cumulative[-1]
            if samples >= SHORT:
                page.append(self._lines(values, "%s") % (*map(_number, (*cumulative, samples)), _number(child.total)))
                continue
            form = forms.get(values)
            if form is None:
                form = forms[values] = self._lines(values, "%d.0")
            page.append(form % (*cumulative, samples, _number(child.total)))

    def _lines(self, values: Sequence[str], number: str) -> str:
        buckets = [self._form(f"{self._name}_bucket", number, values, le=name) for name in self._names]
        count, total = self._form(f"{self._name}_count", number, values), self._form(f"{self._name}_sum", "%s", values)
        return "".join([*buckets, count, total])

    def _new(self) -> HistogramChild:
        return HistogramChild(self._edges)


class HistogramAggregate(Histogram):
    """The sum of all series of another histogram, or of those whose last label is `last`, computed at each scrape."""

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
        total, last = self._children[()], self._last
        parts = [part for values, part in self._of._children.items() if last is None or values[-1] == last]
        if parts:
            total.counts = [sum(counts) for counts in zip(*(part.counts for part in parts), strict=True)]
            total.total = fsum(part.total for part in parts)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """As Go writes it: an exponent from SHORT on, where Python writes it later."""
    if value < SHORT:
        return repr(float(value))
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # upstream
