"""Every panel and every rule, asked of a real Prometheus that has watched a real stack through a storm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey
from services.retrieval.minilm import ModelUnusable, find_model
from tests.grafana.queries import OF_EXPORTERS, alerts, panel_queries, panels, records, selections
from tests.real.grafana.prometheus import PROMETHEUS, WINDOW, Prometheus, running
from tests.real.grafana.storm import Storm
from tests.real.stack.stand import Stand
from tests.real.stack.test_governor import governor_before

pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: apt install prometheus)"),
]

COMPARED = re.compile(r"(?<![=!<>~])(>=|<=|==|>|<)\s*(?=[\d(])")
CHOSEN = re.compile(r"\$(tenant|class|instance)\b")
ROUNDING = 1e-9
# Alerts about several routers, and what each of them asks for that a router exports only with EXCHANGE_URL. This stack
# has one router, without it.
OF_SEVERAL_ROUTERS = {"WeirExchangeStale": "weir_exchange_age_seconds", "WeirLeaseDown": "weir_lease_up"}
# Counters of what must not happen in this storm: they are there, and stay at nothing.
AT_REST = {
    "How often is an engine replaced?",
    "How many connections are held, and refused?",
}


def asked(expression: str) -> str:
    """As Grafana would ask it, with everything chosen."""
    return CHOSEN.sub(".*", expression.replace("$__rate_interval", WINDOW))


def measured(expression: str) -> str:
    """An alert's expression with its comparisons turned into 0 and 1, so that it says something in quiet times too."""
    return COMPARED.sub(r"\1 bool ", expression)


def of_an_exporter(expression: str) -> bool:
    """Asked of the stores' exporters, which only the containers have."""
    return any(job in OF_EXPORTERS for _, job in selections(expression))


SHARES = [
    (f"{file}: {panel['title']}", asked(target["expr"]))
    for file, panel in panels()
    for target in panel["targets"]
    if panel["fieldConfig"]["defaults"]["unit"] == "percentunit" and "max" in panel["fieldConfig"]["defaults"]
    if not of_an_exporter(target["expr"])
]
QUERIES = [(f"{file}: {title}", asked(expr)) for file, title, expr in panel_queries() if not of_an_exporter(expr)]
RULES = [(rule["record"], rule["expr"]) for rule in records()]
EVERY_ALERT = {rule["alert"]: measured(rule["expr"]) for rule in alerts()}
ALERTS = [(name, expr) for name, expr in EVERY_ALERT.items() if name not in OF_SEVERAL_ROUTERS]


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, redis: EmbeddedValkey
) -> Iterator[Prometheus]:
    """Prometheus after the storm."""
    try:
        find_model()
    except ModelUnusable as error:
        pytest.skip(str(error))
    stand = Stand(tmp_path_factory.mktemp("stand"), postgres, redis)
    try:
        stand.start()
        with governor_before(stand, stand.router, GOVERNOR_MAX_INFLIGHT="1") as governor:
            addresses = {part.name: f"127.0.0.1:{part.metrics_port}" for part in (*stand.parts, governor)}
            with running(tmp_path_factory.mktemp("prometheus"), addresses) as prometheus:
                asyncio.run(Storm(stand, governor, prometheus).play(Awaited(prometheus).is_over))
                yield prometheus
    finally:
        stand.stop()


class Awaited:
    """What has shown nothing yet; each is asked until it has."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.prometheus = prometheus
        self.expressions = [*QUERIES, *RULES, *ALERTS]

    def is_over(self) -> bool:
        while self.expressions:
            name, expression = self.expressions[-1]
            most = self.prometheus.most(expression)
            if most is None or (most <= 0 and moves(name)):
                return False
            self.expressions.pop()
        return True


def moves(name: str) -> bool:
    """Whether a panel is to show more than nothing; names of rules have no colon and a space."""
    _, panel, title = name.partition(": ")
    return bool(panel) and title not in AT_REST


@pytest.mark.parametrize("expression", [pytest.param(expr, id=name) for name, expr in (*QUERIES, *RULES, *ALERTS)])
def test_an_expression_has_an_answer(prometheus, expression):
    assert prometheus.most(expression) is not None


@pytest.mark.parametrize(("name", "lacking"), OF_SEVERAL_ROUTERS.items())
def test_an_alert_about_several_routers_has_no_answer_for_want_of_one_series_and_of_no_other(prometheus, name, lacking):
    expression = EVERY_ALERT[name]
    assert prometheus.most(expression) is None
    found = {series: prometheus.most(f'{series}{{job="{job}"}}') for series, job in selections(expression)}
    assert [series for series, most in found.items() if most is None] == [lacking]


@pytest.mark.parametrize(("name", "expression"), QUERIES, ids=[name for name, _ in QUERIES])
def test_a_panel_has_shown_more_than_nothing(prometheus, name, expression):
    most = prometheus.most(expression)
    assert most is not None
    assert most > 0 or not moves(name)


@pytest.mark.parametrize(("name", "expression"), SHARES, ids=[name for name, _ in SHARES])
def test_a_share_lies_between_nothing_and_all(prometheus, name, expression):
    numbers = prometheus.seen(expression)
    assert min(numbers) >= -ROUNDING
    assert max(numbers) <= 1 + ROUNDING


def test_prometheus_runs_every_rule_without_an_error(prometheus):
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {name for name, _ in RULES} | EVERY_ALERT.keys()
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


def test_an_alert_was_pending_while_a_worker_was_down(prometheus):
    assert prometheus.most('ALERTS{alertname="WeirTargetUnreached", instance="worker-0", alertstate="pending"}') == 1
