"""What docker-compose.yml promises: loopback only, confined, in order of health, and no setting that does not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from services.retrieval.config import RetrievalSettings
from services.router.config import RouterSettings
from services.runtime.settings import ServiceSettings
from services.worker.config import WorkerSettings

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SETTINGS: dict[str, type[ServiceSettings]] = {
    "router": RouterSettings,
    "retrieval": RetrievalSettings,
    "seed": RetrievalSettings,
    "worker-0": WorkerSettings,
    "worker-1": WorkerSettings,
}
FROM_THE_IMAGE = {"router", "retrieval", "worker-0", "worker-1"}  # their health check is in the Dockerfile
LEAVES = {"seed"}
WITHOUT_HEALTH = LEAVES | {"locust"}

every_service = pytest.mark.parametrize("name", sorted(SERVICES))


@every_service
def test_only_loopback_ports_are_published(name):
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@every_service
def test_a_container_is_confined(name):
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["logging"]["options"]["max-size"]


@every_service
def test_what_others_wait_for_can_be_healthy(name):
    conditions = [
        waiting["depends_on"][name]["condition"]
        for waiting in SERVICES.values()
        if name in waiting.get("depends_on", {})
    ]
    if name in LEAVES:
        assert set(conditions) == {"service_completed_successfully"}
    else:
        assert set(conditions) <= {"service_healthy"}
        assert name in WITHOUT_HEALTH | FROM_THE_IMAGE or "test" in SERVICES[name]["healthcheck"]


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_variable_given_is_a_setting(name):
    known = {field.upper() for field in SETTINGS[name].model_fields}
    assert SERVICES[name]["environment"].keys() - known == set()


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_the_grace_exceeds_the_drain(name):
    grace = SERVICES[name]["stop_grace_period"].removeprefix("${STOP_GRACE_PERIOD:-").removesuffix("s}")
    assert float(grace) > SETTINGS[name].model_fields["drain_timeout_s"].default


@every_service
def test_a_stop_reaches_what_it_is_meant_for(name):
    """An init passes signals on, so a stop during start-up is obeyed; but not to a user it may not signal."""
    changes_user = "SETUID" in SERVICES[name].get("cap_add", [])
    assert SERVICES[name]["init"] is not changes_user


def test_the_stores_are_reached_by_retrieval_alone():
    assert COMPOSE["networks"]["store"]["internal"]
    assert {name for name, service in SERVICES.items() if "store" in service["networks"]} == {
        "postgres", "redis", "retrieval", "seed",
    }  # fmt: skip


def test_only_those_with_a_page_or_an_api_reach_outside():
    inside = {name for name, network in COMPOSE["networks"].items() if (network or {}).get("internal")}
    outside = {name for name, service in SERVICES.items() if set(service["networks"]) - inside}
    assert outside == {name for name, service in SERVICES.items() if "ports" in service}
