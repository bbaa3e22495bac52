"""Counters and histograms say what prometheus_client's say."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from services.core.outcome import Outcome
from services.runtime import instruments
from services.runtime.telemetry import SECONDS_BUCKETS, new_registry

tenants = st.sampled_from(["a", 'b"\n\\', "é"])
amounts = st.floats(0, 200) | st.sampled_from(SECONDS_BUCKETS)
counted = st.lists(st.tuples(tenants, st.sampled_from(Outcome), amounts), max_size=30)


def told(metrics: object, samples: list[tuple[str, Outcome, float]]) -> str:
    """The text that a scrape gets when these are counted with these classes."""
    registry = CollectorRegistry()
    counter = metrics.Counter("ended", "How.", ["tenant", "outcome"], registry=registry)  # type: ignore[attr-defined]
    seconds = metrics.Histogram(  # type: ignore[attr-defined]
        "seconds", "How long.", ["tenant"], buckets=SECONDS_BUCKETS, registry=registry
    )
    plain = metrics.Counter("plain_total", "All.", registry=registry)  # type: ignore[attr-defined]
    spread = metrics.Histogram("spread", "All.", buckets=[1, 2.5], registry=registry)  # type: ignore[attr-defined]
    for tenant, outcome, amount in samples:
        counter.labels(tenant, outcome).inc()
        seconds.labels(tenant).observe(amount)
        plain.inc(amount)
        spread.observe(amount)
    return generate_latest(registry).decode()


@given(counted)
def test_a_scrape_reads_the_same_as_from_prometheus_client(samples: list[tuple[str, Outcome, float]]) -> None:
    new_registry()  # turns off the `_created` series, as every service does
    assert told(instruments, samples) == told(prometheus_client, samples)


@given(counted)
def test_what_is_added_up_when_it_is_asked_for_is_what_would_have_been_counted(
    samples: list[tuple[str, Outcome, float]],
) -> None:
    registry = CollectorRegistry()
    parts = instruments.Histogram("parts", "By how.", ["tenant", "outcome"], buckets=SECONDS_BUCKETS, registry=registry)
    everything = instruments.HistogramAggregate("everything", "All.", parts, registry=registry)
    served = instruments.HistogramAggregate("served", "Those.", parts, Outcome.SERVED, registry=registry)
    counted_too = CollectorRegistry()
    buckets = {"buckets": SECONDS_BUCKETS, "registry": counted_too}
    all_counted = instruments.Histogram("everything", "All.", **buckets)  # type: ignore[arg-type]
    served_counted = instruments.Histogram("served", "Those.", **buckets)  # type: ignore[arg-type]
    for asked_before in (True, False):
        for tenant, outcome, amount in samples:
            parts.labels(tenant, outcome).observe(amount)
            all_counted.observe(amount)
            if outcome is Outcome.SERVED:
                served_counted.observe(amount)
        if asked_before:
            generate_latest(registry)
    for ours, theirs in ((everything, all_counted), (served, served_counted)):
        page: list[str] = []
        ours.write(page)
        (family,), (wanted,) = ours.collect(), theirs.collect()
        values, known = ([sample.value for sample in each.samples] for each in (family, wanted))
        assert values == pytest.approx(known)
        assert len("".join(page).splitlines()) == len(values) + 2


def test_a_name_cannot_be_taken_twice() -> None:
    registry = CollectorRegistry()
    instruments.Counter("weir_requests", "One.", ["tenant"], registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        instruments.Counter("weir_requests", "Another.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        prometheus_client.Counter("weir_requests", "A third.", registry=registry)


def test_a_series_has_all_labels_of_its_family() -> None:
    family = instruments.Counter("weir_requests", "Ended.", ["tenant", "outcome"], registry=CollectorRegistry())
    assert family.labels("demo", Outcome.SERVED) is family.labels("demo", "served")
    with pytest.raises(ValueError, match="labels"):
        family.labels("demo")
