"""The composition root of the storm bench."""

from __future__ import annotations

from loadtests.storm.api import EXAMPLES, add_storm
from loadtests.storm.bench import StormBench
from loadtests.storm.config import StormSettings
from services.runtime.api import new_api
from services.runtime.drain import Drain
from services.runtime.health import Readiness, add_health
from services.runtime.internal import inner_checks, is_health
from services.runtime.log import Log
from services.runtime.serve import Process, from_settings
from services.runtime.service import Service
from services.runtime.telemetry import metrics_app, new_registry

NAME = "storm"


def build(settings: StormSettings) -> Process:
    log, drain = Log(NAME, settings.log_level), Drain()
    registry = new_registry()
    bench = StormBench(settings, log)
    api = new_api("Weir storm bench", "Starts load on the router, for the console's button.", examples=EXAMPLES)
    add_health(api, NAME, lambda: Readiness(True), drain)
    add_storm(api, bench)
    service = Service(NAME, api, log=log, drain=drain)
    token = settings.shared_token
    return from_settings(
        settings,
        name=NAME,
        port=settings.storm_port,
        port_variable="STORM_PORT",
        app=service,
        metrics=metrics_app(registry, log),
        registry=registry,
        log=log,
        drain=drain,
        checks=inner_checks(settings.host, token=token, allowed_hosts=settings.allowed_hosts, is_open=is_health),
        metrics_checks=inner_checks(settings.metrics_host, token=token, allowed_hosts=settings.allowed_hosts),
        start=bench.begin,
        stop=bench.end,
    )
