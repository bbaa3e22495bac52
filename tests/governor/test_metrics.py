"""What a scrape finds: the original's five names, and nothing that the operator is not told of."""

from __future__ import annotations

from pathlib import Path

from services.governor.gate import Bounds, Gate
from services.governor.metrics import GovernorMetrics
from services.governor.protocol import Ended
from services.runtime.telemetry import new_registry

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
ORIGINAL = {
    "heptamini_backend_inflight", "heptamini_backend_cap", "heptamini_server_health",
    "heptamini_executed_total", "heptamini_yielded_total",
}  # fmt: skip
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")


def series() -> set[str]:
    """The names that a governor of its own exports, a histogram's without their endings."""
    registry = new_registry()
    metrics = GovernorMetrics(registry)
    metrics.watch(Gate(cap=2, bounds=Bounds(), random=lambda: 0.0), lambda: 3)
    metrics.ended(Ended.DONE, 1.5)
    found = {sample.name for family in registry.collect() for sample in family.samples}
    for ending in OF_A_HISTOGRAM:
        found = {name.removesuffix(ending) for name in found}
    return {name for name in found if not name.startswith(("python_", "process_"))}


def test_a_scrape_has_the_originals_five_names_and_the_rest_under_ours() -> None:
    others = series() - ORIGINAL
    assert series() >= ORIGINAL
    assert all(name.startswith("weir_governor_") for name in others)


def test_every_metric_stands_in_the_operators_table() -> None:
    page = OPERATIONS.read_text(encoding="utf-8")
    assert [name for name in sorted(series()) if f"`{name}`" not in page] == []
