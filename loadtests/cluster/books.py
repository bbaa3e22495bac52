"""The router's books against the client's: every try that was made, counted once on either side, under one name.

Read off the router's metrics before and after a load. Tries that the client itself gave up, or that failed on the way,
have no name of their own at the router, so only a load without any can be expected to agree to the last one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from loadtests.load.ledger import GAVE_UP, LATE, ON_TIME

_REQUESTS = re.compile(r'^weir_requests_total(\{[^}\n]*\boutcome="([^"]+)"[^}\n]*\}) (\S+)$', re.MULTILINE)
_NAMES = {ON_TIME: "served", LATE: "served", GAVE_UP: "client_gone"}


def of_router(metrics: str, tenants: Collection[str] = ()) -> Counter[str]:
    """Requests by outcome: of these tenants together, or of all. Raises ValueError for what is no metric."""
    of_tenants = [f'tenant="{name}"' for name in tenants] or [""]
    books: Counter[str] = Counter()
    for labels, outcome, value in _REQUESTS.findall(metrics):
        if any(each in labels for each in of_tenants):
            books[outcome] += round(float(value))
    return books


def of_client(tries: Mapping[str, int]) -> Counter[str]:
    """The same from a ledger's tries."""
    books: Counter[str] = Counter()
    for ending, count in tries.items():
        books[_NAMES.get(ending, ending.removeprefix("refused:"))] += count
    return books


def differences(before: Counter[str], after: Counter[str], client: Counter[str]) -> dict[str, int]:
    """By outcome, how many more the router counted than the client; nothing where they agree."""
    found = {name: after[name] - before[name] - client[name] for name in sorted({*before, *after, *client})}
    return {name: difference for name, difference in found.items() if difference}


def total(metrics: str, name: str, having: str = "") -> float:
    """A metric added up over the series whose labels have this."""
    lines = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    return sum(float(value) for labels, value in lines if having in labels)
