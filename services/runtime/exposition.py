"""Writes the metrics page quickly, since a scrape runs on the event loop (decision record 039).

prometheus_client formats each sample anew: 7 ms for a thousand series. The families of `instruments` keep the text of
each series, and the page is equal to the byte.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from services.runtime.renamed_metrics import old_names


@runtime_checkable
class Written(Protocol):
    """A family that writes its own lines."""

    def write(self, page: list[str]) -> None:
        """Add its lines, each with its line end."""


class Registry(CollectorRegistry):
    """A registry that knows which families write themselves."""

    def __init__(self) -> None:
        super().__init__()
        self._families: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self._families.append(collector)

    def unregister(self, collector: Collector) -> None:
        super().unregister(collector)
        self._families.remove(collector)

    def page(self) -> bytes:
        page: list[str] = []
        for family in self._families:
            start = len(page)
            if isinstance(family, Written):
                family.write(page)
            else:
                page.append(generate_latest(family).decode("utf-8"))
            page.append(old_names(page[start:]))
        return "".join(page).encode("utf-8")


def page_of(registry: CollectorRegistry) -> bytes:
    if isinstance(registry, Registry):
        return registry.page()
    page = generate_latest(registry).decode("utf-8")
    return (page + old_names([page])).encode("utf-8")
