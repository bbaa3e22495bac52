"""The same panels and rules of two routers that share two workers: what the stack with one router cannot answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grafana.overview import SLOTS
from loadtests.cluster.processes import frozen
from services.cli.valkey import EmbeddedValkey
from tests.grafana.queries import alerts
from tests.real.grafana.prometheus import PROMETHEUS, Prometheus, running
from tests.real.grafana.test_under_load import EVERY_ALERT, OF_SEVERAL_ROUTERS, QUERIES, RULES, asked
from tests.real.stack.stand import MODEL, WORKER_SETTINGS, sharing_routers, until

pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: apt install prometheus)"),
]

ROUTERS, WORKERS = ("router", "router-1"), ("worker-0", "worker-1")
SLOTS_OF_ALL = len(WORKERS) * int(WORKER_SETTINGS["MAX_BATCH_SIZE"])
SERVED = 'sum by (instance) (weir_requests_total{job="router", outcome="served"})'
EXPRESSIONS = (*QUERIES, *RULES, *EVERY_ALERT.items())


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, redis: EmbeddedValkey) -> Iterator[Prometheus]:
    """Prometheus, while both routers answer and neither has work."""
    if not redis.running:
        redis.start()
    with sharing_routers(tmp_path_factory.mktemp("routers"), ROUTERS, redis.url) as (routers, workers):
        addresses = {part.name: f"127.0.0.1:{part.metrics_port}" for part in (*workers, *routers)}
        with running(tmp_path_factory.mktemp("prometheus"), addresses) as prometheus:
            until(lambda: prometheus.holds('count(weir_exchange_age_seconds{job="router"} < 2) == 2'), "both exchange")
            for router in routers * 2:
                body = {"model": MODEL, "prompt": "What is a weir?", "max_tokens": 20}
                assert router.http.post(f"{router.url}/v1/completions", json=body).status_code == 200
            until(lambda: prometheus.holds(f"count({SERVED} >= 2) == {len(routers)}"), "both have served")
            yield prometheus


def now(prometheus: Prometheus, expression: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each answer."""
    return [(one["metric"], float(one["value"][1])) for one in prometheus.get("query", query=expression)["result"]]


@pytest.mark.parametrize("expression", [pytest.param(expr, id=name) for name, expr in EXPRESSIONS])
def test_an_expression_asks_nothing_that_only_one_router_can_answer(prometheus, expression):
    """Two series where an operator takes one: Prometheus answers with an error, and `get` raises."""
    prometheus.seen(expression)


def test_prometheus_runs_every_rule_without_an_error(prometheus):
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {name for name, _ in RULES} | EVERY_ALERT.keys()
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] != "inactive"] == []


def test_an_alert_about_several_routers_is_asked_of_each_router_and_of_each_lease(prometheus):
    assert OF_SEVERAL_ROUTERS.keys() == {"WeirExchangeStale", "WeirLeaseDown"}
    stale = now(prometheus, EVERY_ALERT["WeirExchangeStale"])
    assert sorted((of["instance"], of["pool"], value) for of, value in stale) == [
        (name, MODEL, 0.0) for name in ROUTERS
    ]
    down = now(prometheus, EVERY_ALERT["WeirLeaseDown"])
    leases = [(router, worker, 0.0) for router in ROUTERS for worker in WORKERS]
    assert sorted((of["instance"], of["worker"], value) for of, value in down) == leases


def test_a_worker_that_both_routers_know_is_counted_once(prometheus):
    (healthy,) = (expr for name, expr in QUERIES if name.endswith(": How many workers are healthy?"))
    assert [value for _, value in now(prometheus, healthy)] == [len(WORKERS)]
    assert [value for _, value in now(prometheus, asked(SLOTS))] == [SLOTS_OF_ALL]


def test_a_store_that_stands_still_makes_the_exchange_stale_at_both_routers(prometheus, redis):
    (stale,) = (rule["expr"] for rule in alerts() if rule["alert"] == "WeirExchangeStale")
    with frozen(redis.pid):
        until(lambda: len(now(prometheus, stale)) == len(ROUTERS), "both say so")
    until(lambda: now(prometheus, stale) == [], "the exchange goes on")
