"""Locust's entry: `make load SCENARIO=burst`, or `locust -f loadtests/locustfile.py`. README.md says how to read it.

Locust finds the users and the shape among this module's names. Nothing is imported from the services: this is a client,
and it knows what any client could.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import gevent
from locust import events
from scenario import Scenario, load
from shapes import shape_of
from target import refusal
from users import Chatter, Listener, Reader, Run

__all__ = ["Chatter", "Listener", "Reader", "Shape"]

DEFAULT_HOST = "http://127.0.0.1:8000"
QUESTIONS = Path(__file__).parent / "questions.txt"


def _chosen() -> Scenario:
    try:
        return load(os.environ.get("SCENARIO") or "baseline")
    except ValueError as error:
        sys.exit(f"loadtests: {error}")


Shape = shape_of(_chosen())


@events.init.add_listener
def prepare(environment: Any, **_: Any) -> None:
    """Check where the load would go, before any is sent. Each user checks again: the web page can change it."""
    environment.host = environment.host or DEFAULT_HOST
    forbidden = refusal(environment.host)
    if forbidden:
        sys.exit(f"loadtests: {forbidden}")
    if environment.web_ui is None:  # while a shape runs headless, Locust does not obey SIGTERM: end with the summary
        gevent.signal_handler(signal.SIGTERM, environment.runner.quit)
    environment.stop_timeout = Shape.scenario.deadline_ms / 1000  # who has asked may hear the answer
    renew(environment)


@events.test_start.add_listener
def renew(environment: Any, **_: Any) -> None:
    """Every run begins with an empty ledger."""
    environment.run_data = Run(Shape.scenario, QUESTIONS.read_text(encoding="utf-8").splitlines())


@events.test_stop.add_listener
def summarise(environment: Any, **_: Any) -> None:
    """Print how the requests ended."""
    scenario = Shape.scenario
    print(f"\n{scenario.name}: {scenario.asks}\n{environment.run_data.ledger.table()}\n", flush=True)
