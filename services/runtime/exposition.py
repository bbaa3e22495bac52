"""The page that Prometheus reads, written quickly: a scrape runs on the event loop, and whoever is served waits for it.

prometheus_client makes an object of each sample, sorts its labels and escapes them, anew for each scrape: 7 ms for a
thousand series. The families of `instruments` keep the lines of each series and put numbers into them, in a small part
of that; everything else is written by prometheus_client as ever, and the page is the same to the byte.
`python -m loadtests.bench observing` measures both.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from services.runtime.renamed_metrics import with_old_names


@runtime_checkable
class Written(Protocol):
    """A family that writes itself."""

    def write(self, page: list[str]) -> None:
        """Add its lines, each with its end."""


class Registry(CollectorRegistry):
    """A registry that knows which of its families write themselves."""

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
        """All of it, as it is now."""
        page: list[str] = []
        for family in self._families:
            if isinstance(family, Written):
                family.write(page)
            else:
                page.append(generate_latest(family).decode("utf-8"))
        return with_old_names("".join(page)).encode("utf-8")


def page_of(registry: CollectorRegistry) -> bytes:
    """The page of any registry."""
    if isinstance(registry, Registry):
        return registry.page()
    return with_old_names(generate_latest(registry).decode("utf-8")).encode("utf-8")
