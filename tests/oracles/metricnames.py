"""The metrics of every service: name, type, labels, help, and the edges of histograms, in one file.

Dashboards, alerts and people depend on these. They are read from each service as it is built, without running it, and
so without a sample: `tests/stack/test_metrics.py` compares what a working stack says with docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from loadtests.storm import app as storm
from loadtests.storm.config import StormSettings
from services.desk import app as desk
from services.desk.config import DeskSettings
from services.governor import app as governor
from services.governor.config import GovernorSettings
from services.retrieval import app as retrieval
from services.retrieval.config import RetrievalSettings
from services.router import app as router
from services.router.config import RouterSettings
from services.runtime.otel import Exporting, Sender
from services.runtime.serve import Process
from services.worker import app as worker
from services.worker.config import WorkerSettings
from tests.oracles.oracle import PINNED, Oracle

OF_THE_PROCESS = ("process_", "python_")
"""Those of prometheus_client, which differ from one system to the next."""
BARE: dict[str, Any] = {"_env_file": None}

BUILT: Mapping[str, Callable[[], Process]] = {
    "router": lambda: router.build(RouterSettings(**BARE)),
    "retrieval": lambda: retrieval.build(RetrievalSettings(**BARE), Path()),
    "worker": lambda: worker.build(WorkerSettings(**BARE)),
    "desk": lambda: desk.build(DeskSettings(**BARE)),
    "governor": lambda: governor.build(GovernorSettings(**BARE)),
    "storm bench": lambda: storm.build(StormSettings(**BARE)),
}


def texts() -> dict[str, str]:
    """The one file."""
    collectors = {name: _collectors(build()) for name, build in BUILT.items()}
    collectors["every service, with traces"] = _of_traces()
    return {"metrics.txt": "\n".join(line for name, found in collectors.items() for line in _told(name, found)) + "\n"}


class Unsent(Sender):
    """A collector to which nothing is sent."""

    def send(self, message: bytes) -> bool:
        raise AssertionError("there are no traces")

    def close(self) -> None:
        pass


def _of_traces() -> list[Collector]:
    """What the exporter of traces adds."""
    exporting = Exporting(Unsent(), {})
    exporting.close(1.0)
    return [exporting]


def _told(name: str, collectors: Sequence[Collector]) -> Iterator[str]:
    yield f"== {name}"
    found = {family: text for collector in collectors for family, text in _families(collector)}
    for family in sorted(found):
        if not family.startswith(OF_THE_PROCESS):
            yield found[family]
    yield ""


def _collectors(process: Process) -> list[Collector]:
    assert process.registry is not None
    return list(process.registry._collector_to_names)


def _families(collector: Any) -> Iterator[tuple[str, str]]:
    for family in collector.collect():
        labels: tuple[str, ...] = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines = [f"{name} {family.type} {{{', '.join(labels)}}}", f"   {family.documentation}"]
        if family.type == "histogram":
            lines.append(f"   buckets: {' '.join(_edges(collector, family))}")
        yield name, "\n".join(lines)


def _edges(collector: Any, family: Metric) -> list[str]:
    edges = getattr(collector, "_edges", None) or getattr(collector, "_upper_bounds", ())
    return [floatToGoString(edge) for edge in edges]  # type: ignore[no-untyped-call]  # untyped upstream


ORACLE = Oracle("metrics", PINNED / "metrics", texts)
