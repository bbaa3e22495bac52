"""The router's queue depth, rejections and degradation during a run, from its own /metrics or from Prometheus.

Both sources give the same numbers at the same moments: gauges as they are, and counters for rates.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from urllib.parse import urlencode
from urllib.request import urlopen

import msgspec

from loadtests.cluster.books import total
from loadtests.cluster.processes import get
from loadtests.target import is_beyond

EVERY_S = 1.0
WITHIN_S = 5.0
LET_IN = ("admit", "degrade")
_LEVEL = re.compile(r"^weir_degradation_level(?:\{[^}\n]*\})? (\S+)$", re.MULTILINE)

QUERIES = {
    "waiting": "sum(weir_queue_depth)",
    "level": "max(weir_degradation_level)",
    "refused": f'sum(weir_admission_total{{decision!~"{"|".join(LET_IN)}"}})',
    "degraded": "sum(weir_degradation_total)",
}


class Sample(msgspec.Struct, frozen=True):
    """One sample. `at_s`: seconds since the run began; `refused` and `degraded` are counters."""

    at_s: float = 0.0
    waiting: float = 0.0
    level: float = 0.0
    refused: float = 0.0
    degraded: float = 0.0


def parse(text: str, at_s: float = 0.0) -> Sample:
    """Parses the router's metrics (Prometheus text format). Raises ValueError if they are not a router's."""
    if "weir_inflight" not in text:
        raise ValueError("there is no weir_inflight: is it a router's metrics listener?")
    level = max(map(float, _LEVEL.findall(text)), default=0.0)
    let_in = sum(total(text, "weir_admission_total", f'decision="{decision}"') for decision in LET_IN)
    refused = total(text, "weir_admission_total") - let_in
    return Sample(at_s, total(text, "weir_queue_depth"), level, refused, total(text, "weir_degradation_total"))


def now() -> float:
    """Seconds since 1970, the clock that Prometheus and the Locust process share."""
    return datetime.now(UTC).timestamp()


def of_router(url: str) -> bytes:
    """The router's metrics. The local stack's token is sent to no other machine."""
    return plain(url) if is_beyond(url) else get(url)


def plain(url: str) -> bytes:
    """The body of a 200. Raises OSError for anything else."""
    with urlopen(url, timeout=WITHIN_S) as answer:
        return bytes(answer.read())


class Watching:
    """Samples once a second in a thread, between `start` and `stop`. `missed`: samples without an answer."""

    def __init__(self, url: str, read: Callable[[str], bytes] = of_router) -> None:
        self._url = url
        self._read = read
        self._over = threading.Event()
        self._seen: list[Sample] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.missed = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def since(self, began: float) -> list[Sample]:
        found = (msgspec.structs.replace(each, at_s=round(each.at_s - began, 2)) for each in self._seen)
        return [each for each in found if each.at_s >= 0]

    def look(self) -> None:
        try:
            self._seen.append(parse(self._read(self._url).decode("utf-8", "replace"), now()))
        except (OSError, ValueError):
            self.missed += 1

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self.look()


def from_prometheus(url: str, began: float, seconds: float, read: Callable[[str], bytes] = plain) -> list[Sample]:
    """The same samples from a Prometheus that scrapes the router. Raises OSError or ValueError."""
    series = {}
    for name, query in QUERIES.items():
        query_string = urlencode({"query": query, "start": began, "end": began + seconds, "step": EVERY_S})
        series[name] = _values(read(f"{url.rstrip('/')}/api/v1/query_range?{query_string}"), began)
    moments = sorted({at for values in series.values() for at in values})
    return [Sample(at, **{name: values.get(at, 0.0) for name, values in series.items()}) for at in moments]


def _values(body: bytes, began: float) -> dict[float, float]:
    try:
        answer = json.loads(body)
        found = answer["data"]["result"]
        values: Iterable[tuple[float, str]] = found[0]["values"] if found else ()
        return {round(float(at) - began, 2): float(value) for at, value in values}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"Prometheus answers with no series: {error}") from None


def rates(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """(second, rate per second) of a counter between two samples. A restarted router's drop counts as 0."""
    return [
        (after.at_s, max(0.0, getattr(after, name) - getattr(before, name)) / (after.at_s - before.at_s))
        for before, after in pairwise(samples)
        if after.at_s > before.at_s
    ]


def summary(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Queue depth, mean and max; rejections and cut answers a second, max; the highest level. Empty without samples."""
    if not samples:
        return ()
    waiting = [each.waiting for each in samples]
    highest = (max((per_s for _, per_s in rates(samples, name)), default=0.0) for name in ("refused", "degraded"))
    return sum(waiting) / len(waiting), max(waiting), *highest, max(each.level for each in samples)
