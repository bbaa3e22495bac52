"""What is rare is there before it happens: Prometheus sees no rate in a counter that is born at one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.core.outcome import Outcome
from services.router.telemetry.metrics import RouterMetrics
from services.runtime.telemetry import new_registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


def test_with_a_tenants_first_request_all_its_outcomes_are_there_at_nothing():
    registry = new_registry()
    metrics = RouterMetrics(registry)
    metrics.ended("new", Outcome.SERVED, 0.1)
    found = {outcome: value(registry, "weir_requests_total", tenant="new", outcome=outcome) for outcome in Outcome}
    assert found == {outcome: float(outcome is Outcome.SERVED) for outcome in Outcome}
    assert value(registry, "weir_admission_total", tenant="new", decision="admit") == 0
    assert value(registry, "weir_admission_total", tenant="new", decision=Outcome.YIELD) == 0


def test_that_passages_are_missing_is_counted_from_nothing():
    registry = new_registry()
    RouterMetrics(registry)
    assert value(registry, "weir_retrieval_seconds_count", source="none") == 0
