"""Metrics of several processes on one page: what is summed, what is said by process, and that no sum ever falls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from services.router.app import build
from services.router.processes.pages import SUMMED, JoinedPages, parse
from services.runtime.exposition import page_of
from services.runtime.renamed_metrics import RENAMED
from tests.router.rig import GivenSettings

PAGE = """\
# HELP weir_requests_total Requests, by outcome.
# TYPE weir_requests_total counter
weir_requests_total{{outcome="served",tenant="a b"}} {served}
# HELP weir_wait_seconds Wait.
# TYPE weir_wait_seconds histogram
weir_wait_seconds_bucket{{le="0.1"}} {low}
weir_wait_seconds_bucket{{le="+Inf"}} {served}
weir_wait_seconds_count {served}
weir_wait_seconds_sum {total}
# HELP weir_inflight Requests dispatched to workers.
# TYPE weir_inflight gauge
weir_inflight {inflight}
# HELP weir_degradation_level The level.
# TYPE weir_degradation_level gauge
weir_degradation_level{{class="c",pool="p"}} {level}
# HELP process_resident_memory_bytes Resident memory size in bytes.
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1e+06
"""


def page(served: float = 1.0, low: float = 1.0, total: float = 0.5, inflight: float = 2.0, level: float = 0.0) -> str:
    return PAGE.format(served=served, low=low, total=total, inflight=inflight, level=level)


def samples(text: str) -> dict[str, float]:
    """By Prometheus' own reader: the page must be one that it reads."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(one.labels.items()))
            assert f"{one.name}{{{labels}}}" not in found, "a series comes once"
            found[f"{one.name}{{{labels}}}"] = one.value
    return found


def joined(*pages: str, alive: tuple[str, ...] | None = None) -> dict[str, float]:
    made = JoinedPages()
    for number, text in enumerate(pages):
        made.take(str(number), 1, text)
    return samples(made.page([str(number) for number in range(len(pages))] if alive is None else alive))


def test_counters_and_histograms_are_sums() -> None:
    found = joined(page(served=3, low=1, total=0.5), page(served=4, low=2, total=1.25))
    assert found["weir_requests_total{outcome=served,tenant=a b}"] == 7
    assert found["weir_wait_seconds_bucket{le=0.1}"] == 3
    assert found["weir_wait_seconds_bucket{le=+Inf}"] == found["weir_wait_seconds_count{}"] == 7
    assert found["weir_wait_seconds_sum{}"] == 1.75


def test_what_each_holds_is_summed_and_levels_are_told_by_process() -> None:
    found = joined(page(inflight=2, level=1), page(inflight=3, level=4))
    assert found["weir_inflight{}"] == 5
    assert found["weir_degradation_level{class=c,pool=p,process=0}"] == 1
    assert found["weir_degradation_level{class=c,pool=p,process=1}"] == 4
    assert found["process_resident_memory_bytes{process=1}"] == 1e6


def test_a_process_that_does_not_answer_keeps_its_counters_and_loses_its_gauges() -> None:
    found = joined(page(served=3), page(served=4), alive=("0",))
    assert found["weir_requests_total{outcome=served,tenant=a b}"] == 7
    assert found["weir_inflight{}"] == 2
    assert "weir_degradation_level{class=c,pool=p,process=1}" not in found


def test_a_series_of_one_process_only_is_there() -> None:
    other = page().replace('tenant="a b"', 'tenant="other"')
    found = joined(page(), other)
    assert found["weir_requests_total{outcome=served,tenant=other}"] == 1


def test_an_empty_house_has_an_empty_page() -> None:
    assert JoinedPages().page([]) == ""


@given(st.lists(st.tuples(st.sampled_from("01"), st.booleans(), st.integers(0, 1000)), max_size=30))
def test_no_sum_ever_falls_whoever_ends_and_starts_again(steps: list[tuple[str, bool, int]]) -> None:
    made, counts, starts, before = JoinedPages(), {"0": 0, "1": 0}, {"0": 1, "1": 1}, 0.0
    whole = 0
    for process, anew, more in steps:
        if anew:
            counts[process], starts[process] = 0, starts[process] + 1
        counts[process] += more
        whole += more
        made.take(process, starts[process], page(served=counts[process]))
        now = samples(made.page("01"))["weir_requests_total{outcome=served,tenant=a b}"]
        assert now >= before
        before = now
    assert before == whole, "each page was the last of its process before the next one"


def test_the_pages_of_real_routers_are_joined_to_one_that_prometheus_reads() -> None:
    texts = []
    for _ in range(2):
        process = build(GivenSettings(router_port=0, metrics_port=0))
        assert process.registry is not None
        texts.append(page_of(process.registry).decode())
        process.log.close()
    found = joined(*texts)
    assert found["weir_inflight_cap{}"] == 128, "MAX_INFLIGHT is per process"
    assert found["weir_worker_healthy{process=1,worker=worker-0}"] == 0


def test_every_gauge_that_is_summed_exists() -> None:
    process = build(GivenSettings(router_port=0, metrics_port=0, exchange_url="redis://127.0.0.1:1"))
    assert process.registry is not None
    gauges = {name for name, family in parse(page_of(process.registry).decode()).items() if family.is_gauge}
    process.log.close()
    assert gauges >= SUMMED


def test_an_old_name_is_summed_as_its_new_one() -> None:
    assert {name in SUMMED for new, name in RENAMED.items() if new in SUMMED} == {True}
