"""What is read off a stand's processes: the workers' meters, and the books of router and client."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtests.cluster import books
from loadtests.cluster.meters import parse
from loadtests.cluster.stand import Shape, tenants_yaml
from loadtests.load.ledger import LATE, ON_TIME

METRICS = """\
# HELP weir_worker_step_seconds Duration of an engine step
weir_worker_step_seconds_bucket{le="0.1"} 100.0
weir_worker_step_seconds_count 100.0
weir_worker_step_seconds_sum 2.0
weir_worker_batch_size_count 100.0
weir_worker_batch_size_sum 400.0
weir_worker_requests_total{outcome="served"} 90.0
weir_worker_requests_total{outcome="client_gone"} 10.0
weir_worker_requests_created{outcome="served"} 1.7e+09
weir_wasted_seconds_total{reason="client_gone"} 0.3
weir_wasted_seconds_total{reason="deadline_exceeded"} 0.1
"""


def test_a_workers_waste_is_a_share_of_its_slot_time() -> None:
    meter = parse(METRICS)
    assert (meter.slot_s, meter.wasted_s, meter.requests) == (8.0, 0.4, 100)
    assert meter.wasted == pytest.approx(0.05)


def test_meters_add_up_over_workers_and_are_told_apart_by_time() -> None:
    meter = parse(METRICS)
    assert (meter + meter).requests == 200
    assert (meter + meter - meter) == meter
    assert parse("").wasted == 0


ROUTER = """\
weir_requests_total{outcome="served",tenant="a"} 5.0
weir_requests_total{outcome="served",tenant="b"} 2.0
weir_requests_total{outcome="yield",tenant="a"} 40.0
weir_requests_created{outcome="yield",tenant="a"} 1.7e+09
weir_request_seconds_count{outcome="yield",tenant="a"} 40.0
"""


def test_router_and_client_agree_on_every_outcome_or_the_difference_is_told() -> None:
    router = books.of_router(ROUTER)
    client = books.of_client({ON_TIME: 6, LATE: 1, "refused:yield": 40})
    assert books.differences(Counter(), router, client) == {}
    assert books.differences(router, router, Counter()) == {}
    assert books.differences(Counter(), router, client + Counter({"draining": 2})) == {"draining": -2}
    assert books.differences(Counter(), router, client - Counter({"served": 1})) == {"served": 1}


def test_a_client_that_left_is_gone_at_the_router() -> None:
    assert books.of_client({"client_gave_up": 3, "failed:cut": 1}) == {"client_gone": 3, "failed:cut": 1}


def test_a_tenants_file_has_no_key_in_it() -> None:
    text = tenants_yaml(["light", "heavy"])
    assert "fire-light" not in text
    assert text.count("sha256:") == 2
    assert "degrade" not in text


def test_a_tenants_file_says_whose_answers_may_be_made_shorter() -> None:
    lines = tenants_yaml(["light", "heavy"], frozenset({"heavy"})).splitlines()
    assert [line for line in lines if "degrade: true" in line] == [line for line in lines if "id: heavy" in line]


def test_a_shape_says_what_it_is() -> None:
    assert str(Shape()) == "2 workers x 8 slots x 80 ms"
    assert Shape(workers=1, slots=4, answer_tokens=10).service_s == pytest.approx(0.1)
