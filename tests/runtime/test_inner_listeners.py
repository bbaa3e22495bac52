"""Every service as its `app` builds it: both of its listeners ask for the token, or at least for a name of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtests.storm.app import build as storm
from loadtests.storm.config import StormSettings
from services.desk.app import build as desk
from services.desk.config import DeskSettings
from services.governor.app import build as governor
from services.governor.config import GovernorSettings
from services.retrieval.app import build as retrieval
from services.retrieval.config import RetrievalSettings
from services.router.app import build as router
from services.router.config import RouterSettings
from services.runtime.http import Exchange, HeadCheck
from services.runtime.serve import HttpListener, Process
from services.worker.app import build as worker
from services.worker.config import WorkerSettings
from tests.console.rig import FakeWire

TOKEN = "t0ken-of-sixteen-characters"
BUILDS: dict[str, Callable[[dict[str, Any]], Process]] = {
    "router": lambda given: router(RouterSettings(_env_file=None, **given)),
    "retrieval": lambda given: retrieval(RetrievalSettings(_env_file=None, **given), Path("/nowhere")),
    "worker": lambda given: worker(WorkerSettings(_env_file=None, **given)),
    "desk": lambda given: desk(DeskSettings(_env_file=None, **given)),
    "storm": lambda given: storm(StormSettings(_env_file=None, **given)),
    "governor": lambda given: governor(GovernorSettings(_env_file=None, **given)),
}
INNER = [(name, "public") for name in ("retrieval", "worker", "desk", "storm")] + [(name, "metrics") for name in BUILDS]


def checks(name: str, listener: str, **given: Any) -> tuple[HeadCheck, ...]:
    process = BUILDS[name](given)
    process.log.close()
    if listener == "metrics":
        return process.metrics_checks
    assert isinstance(process.listener, HttpListener)
    return process.listener._shared.checks


def status(checks: tuple[HeadCheck, ...], path: str, method: str = "GET", **headers: str) -> int:
    sent = [(name.encode(), value.encode()) for name, value in {"host": "127.0.0.1:1", **headers}.items()]
    exchange = Exchange(FakeWire(), method, path, sent)
    return next((found.status for check in checks if (found := check(exchange, 0)) is not None), 200)


@pytest.mark.parametrize(("name", "listener"), INNER)
def test_what_is_for_weirs_own_services_asks_for_their_token(name: str, listener: str) -> None:
    asked = checks(name, listener, internal_token=TOKEN)
    path = "/metrics" if listener == "metrics" else "/retrieve"
    assert status(asked, path) == 401
    assert status(asked, path, authorization=f"Bearer {TOKEN}") == 200
    assert status(asked, "/faults", "PUT") == 401


@pytest.mark.parametrize(("name", "listener"), [*INNER, ("router", "public")])
def test_without_a_token_a_rebound_page_is_refused_and_this_machine_is_not(name: str, listener: str) -> None:
    asked = checks(name, listener)
    assert status(asked, "/metrics") == 200
    assert status(asked, "/metrics", host="rebind.attacker.example") == 421
    assert status(asked, "/infer", "POST", origin="http://attacker.example") == 403


@pytest.mark.parametrize("name", ["retrieval", "worker", "storm"])
def test_the_health_check_of_a_container_needs_no_token(name: str) -> None:
    asked = checks(name, "public", internal_token=TOKEN)
    assert status(asked, "/health/ready", host="localhost") == 200
