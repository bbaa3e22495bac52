"""The metrics pages of several processes as one page (Prometheus' text format, as `runtime.exposition` writes it).

counters, histograms   the sum over the processes, those that have ended included: a sum never falls
gauges in SUMMED       the sum over the processes: what each of them holds
other gauges           one series a process, with the label `process`: levels and shares have no sum
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.utils import floatToGoString

from services.runtime.renamed_metrics import RENAMED

_SUMMED = (
    "weir_http_connections",
    "weir_http_incoming_bytes",
    "weir_inflight",
    "weir_inflight_cap",
    "weir_lease_slots",
    "weir_queue_cost_tokens",
    "weir_queue_depth",
    "weir_worker_inflight",
    "weir_worker_slots",
    "weir_worker_work_tokens",
)
SUMMED = frozenset({*_SUMMED, *(RENAMED[name] for name in _SUMMED if name in RENAMED)})
GAUGES = ("gauge", "untyped", "info", "stateset")


@dataclass(slots=True)
class Family:
    """One metric of a page. `samples` maps a series, as it is written, to its value."""

    head: str  # the lines HELP and TYPE
    is_gauge: bool
    samples: dict[str, float] = field(default_factory=dict)


Page = dict[str, Family]


class JoinedPages:
    """The last page of each process, and what processes had counted that have ended since."""

    def __init__(self) -> None:
        self._last: dict[str, Page] = {}
        self._starts: dict[str, int] = {}
        self._ended: Page = {}

    def take(self, process: str, starts: int, text: str) -> None:
        """The page of a process; `starts` is another number for its successor, which counts from 0."""
        if self._starts.get(process, starts) != starts:
            add_up(self._ended, self._last[process])
        self._last[process], self._starts[process] = parse(text), starts

    def page(self, alive: Iterable[str]) -> str:
        """One page for all; gauges are of the processes `alive`."""
        joined: Page = {}
        add_up(joined, self._ended)
        for page in self._last.values():
            add_up(joined, page)
        for process in alive:
            add_gauges(joined, process, self._last.get(process, {}))
        return "".join(map(_text, joined.values()))


def parse(text: str) -> Page:
    """The families of a page by name. The samples of a family follow its lines HELP and TYPE."""
    page: Page = {}
    family = Family("", True)
    help = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help = line
        elif line.startswith("# TYPE "):
            name, kind = line.split(" ", 3)[2:]
            family = page[name] = Family(f"{help}\n{line}\n", kind in GAUGES)
        elif line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            family.samples[series] = float(value)
    return page


def add_up(joined: Page, page: Mapping[str, Family]) -> None:
    """Add the counters and histograms of a page."""
    for name, family in page.items():
        if not family.is_gauge:
            _add(joined.setdefault(name, Family(family.head, False)), family.samples)
        else:
            joined.setdefault(name, Family(family.head, True))


def add_gauges(joined: Page, process: str, page: Mapping[str, Family]) -> None:
    """Add the gauges of the page of a process: to the sum, or as series of their own."""
    for name, family in page.items():
        if family.is_gauge:
            into = joined.setdefault(name, Family(family.head, True))
            _add(into, family.samples if name in SUMMED else _labelled(family.samples, process))


def _add(into: Family, samples: Mapping[str, float]) -> None:
    found = into.samples
    for series, value in samples.items():
        found[series] = found.get(series, 0.0) + value


def _labelled(samples: Mapping[str, float], process: str) -> dict[str, float]:
    label = f'process="{process}"'
    return {
        f"{series[:-1]},{label}}}" if series.endswith("}") else f"{series}{{{label}}}": value
        for series, value in samples.items()
    }


def _text(family: Family) -> str:
    lines = (
        f"{series} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]  # untyped upstream
        for series, value in family.samples.items()
    )
    return family.head + "".join(lines)
