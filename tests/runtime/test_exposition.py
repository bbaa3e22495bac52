"""The page that Prometheus reads is the same to the byte as prometheus_client's, whoever writes it."""

from __future__ import annotations

import math

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.runtime import instruments
from services.runtime.exposition import Registry, page_of
from services.runtime.telemetry import SECONDS_BUCKETS, new_registry

labels = st.tuples(st.sampled_from(["a", 'b"\n\\', "é", "", "%d.0%s", "100%"]), st.text(max_size=3))
amounts = st.floats(0, 1e20) | st.sampled_from([*SECONDS_BUCKETS, 999_999.0, 1e6, 1_234_567.0, 1e16])
events = st.lists(st.tuples(labels, amounts), max_size=12)


def filled(registry: CollectorRegistry, seen: list[tuple[tuple[str, str], float]]) -> CollectorRegistry:
    """Families of every kind, our own among those of prometheus_client."""
    ended = instruments.Counter("ended", 'How\nand "why" \\.', ["zebra", "apple"], registry=registry)
    prometheus_client.Gauge("level", "Of the water.", ["lock"], registry=registry).labels("upper").set(2.5)
    seconds = instruments.Histogram("seconds", "How long.", ["z", "a"], buckets=SECONDS_BUCKETS, registry=registry)
    instruments.Counter("plain_total", "All.", registry=registry).inc(math.fsum(amount for _, amount in seen))
    prometheus_client.Histogram("theirs", "Theirs.", buckets=[1, 2.5], registry=registry).observe(2)
    for names, amount in seen:
        ended.labels(*names).inc(amount)
        seconds.labels(*names).observe(amount)
    return registry


@given(events)
def test_the_page_is_the_one_that_prometheus_client_writes(seen: list[tuple[tuple[str, str], float]]) -> None:
    new_registry()  # turns off the `_created` series, as every service does
    registry = filled(Registry(), seen)
    assert page_of(registry) == generate_latest(registry)
    assert page_of(registry) == page_of(filled(CollectorRegistry(), seen))  # and again, with its lines kept


def test_many_samples_are_written_as_prometheus_writes_them() -> None:
    registry = Registry()
    one = instruments.Histogram("seconds", "How long.", buckets=[1.0], registry=registry)
    one._children[()].counts = [999_999, 1]
    assert b'seconds_bucket{le="1.0"} 999999.0\nseconds_bucket{le="+Inf"} 1e+06\n' in page_of(registry)
    assert page_of(registry) == generate_latest(registry)


def test_what_is_unregistered_is_no_longer_written() -> None:
    registry = Registry()
    gone = instruments.Counter("gone", "Gone.", registry=registry)
    stays = instruments.Counter("stays", "Stays.", registry=registry)
    stays.inc()
    registry.unregister(gone)
    assert [family.name for family in text_string_to_metric_families(page_of(registry).decode())] == ["stays"]


def test_a_name_cannot_be_taken_twice_and_who_tries_is_not_written() -> None:
    registry = Registry()
    instruments.Counter("weir_requests", "One.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        instruments.Counter("weir_requests", "Another.", registry=registry)
    assert page_of(registry).count(b"# HELP weir_requests_total") == 1
