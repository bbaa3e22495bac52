"""The vectors of the exchange: calls with their answers, for every implementation of its arithmetic.

`exchange_vectors.yaml` has the steps of each case. A step is a call (`now`, `report`, `answer`) or the restart of an
empty store (`restart`: its run). Play them with any `Store`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import yaml

from services.core.leases.exchange import ClassLevel, UsageAnswer, UsageReport, UsageRow

FILE = Path(__file__).with_name("exchange_vectors.yaml")


class Store(Protocol):
    """One pool of a store, at one time."""

    def call(self, now: float, report: UsageReport) -> UsageAnswer: ...


def cases() -> dict[str, list[dict[str, Any]]]:
    """The steps by the name of their case."""
    return dict(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def report_of(given: dict[str, Any]) -> UsageReport:
    return UsageReport(
        given["router"],
        (given["epoch"], given["sequence"]),
        given["run"],
        tuple(ClassLevel(*each) for each in given.get("classes", [])),
        tuple(UsageRow(**row) for row in given.get("rows", [])),
    )


def plain(answer: UsageAnswer) -> dict[str, Any]:
    """The answer as the file has it, rounded to a millionth."""
    return {
        "run": answer.run,
        "added": answer.added,
        "routers": answer.routers,
        "totals": [
            [each.tenant, each.class_name, *map(_rounded, (each.served, each.asked_per_s)), each.requests,
             _rounded(each.tokens), _rounded(each.tag)]
            for each in answer.totals
        ],
        "classes": [[name, _rounded(served), _rounded(turn)] for name, served, turn in answer.classes],
        "weights": [[name, _rounded(weight)] for name, weight in answer.weights],
        "virtual": [[name, _rounded(level)] for name, level in answer.virtual],
    }  # fmt: skip


def _rounded(value: float) -> float:
    return round(float(value), 6)


def played(steps: list[dict[str, Any]], make: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(expected, found) of each call; `make(run)` makes an empty store."""
    store: Store = make(steps[0]["restart"])
    for step in steps[1:]:
        if "restart" in step:
            store = make(step["restart"])
        else:
            yield step["answer"], plain(store.call(step["now"], report_of(step["report"])))
