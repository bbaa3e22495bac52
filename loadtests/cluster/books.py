"""Compare the router's request counters with the client's: every try counted once on either side, by outcome.

The router's metrics are read before and after a load. Tries that the client gave up, or that failed on the way, have no
name of their own at the router, so only a load without any must agree exactly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from loadtests.load.ledger import GAVE_UP, LATE, ON_TIME

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$", re.MULTILINE)
_NAMES = {ON_TIME: "served", LATE: "served", GAVE_UP: "client_gone"}


def of_router(metrics: str, tenants: Collection[str] = ()) -> Counter[str]:
    """Requests by outcome, of these tenants or of all. Raises ValueError for an invalid metric."""
    return by_label(metrics, "weir_requests_total", "outcome", [f'tenant="{name}"' for name in tenants])


def of_client(tries: Mapping[str, int]) -> Counter[str]:
    """The same from a ledger's tries."""
    books: Counter[str] = Counter()
    for ending, count in tries.items():
        books[_NAMES.get(ending, ending.removeprefix("refused:"))] += count
    return books


def differences(before: Counter[str], after: Counter[str], client: Counter[str]) -> dict[str, int]:
    """By outcome, how many more the router counted than the client; empty if they agree."""
    found = {name: after[name] - before[name] - client[name] for name in sorted({*before, *after, *client})}
    return {name: difference for name, difference in found.items() if difference}


def total(metrics: str, name: str, having: str = "") -> float:
    """The sum of a metric in Prometheus' text format, over the series whose labels contain `having`."""
    return sum(float(value) for each, labels, value in _SAMPLE.findall(metrics) if each == name and having in labels)


def by_label(metrics: str, name: str, label: str, having: Collection[str] = ()) -> Counter[str]:
    """A counter by the values of one label, over the series that contain one of `having`, or over all."""
    counted: Counter[str] = Counter()
    for each, labels, value in _SAMPLE.findall(metrics):
        found = re.search(rf'\b{label}="([^"]*)"', labels) if each == name else None
        if found and (not having or any(other in labels for other in having)):
            counted[found[1]] += round(float(value))
    return counted
