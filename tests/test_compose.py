"""What docker-compose.yml promises: loopback only, confined, in order of health, and no setting that does not exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.governor.config import GovernorSettings
from services.lab.storm.config import StormSettings
from services.retrieval.config import MigrateSettings, RetrievalSettings
from services.router.config import RouterSettings
from services.runtime.settings import ServiceSettings
from services.worker.config import WorkerSettings

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SETTINGS: dict[str, type[ServiceSettings]] = {
    "router": RouterSettings,
    "retrieval": RetrievalSettings,
    "governor": GovernorSettings,
    "storm": StormSettings,
    "seed": RetrievalSettings,
    "migrate": MigrateSettings,
    "worker-0": WorkerSettings,
    "worker-1": WorkerSettings,
    "worker-gpu": WorkerSettings,
    "worker-torch": WorkerSettings,
}
MODEL_WORKERS = {"worker-gpu": "gpu", "worker-torch": "torch"}  # and their profiles
FROM_THE_IMAGE = {
    "router",
    "retrieval",
    "governor",
    "storm",
    "worker-0",
    "worker-1",
    *MODEL_WORKERS,
}  # their health check is in it
LEAVES = {"seed", "model", "migrate"}
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
def test_what_can_be_written_cannot_be_executed(name):
    """Volumes aside, whose folders are the servers' own."""
    for folder in SERVICES[name]["tmpfs"]:
        assert {"noexec", "nosuid", "nodev"} <= set(folder.partition(":")[2].split(","))
        assert "size=" in folder


def test_only_the_migration_knows_the_owner_of_the_database():
    """What goes on running logs in as a user that owns nothing, and no part is given two passwords but the one."""
    knows = {name for name, service in SERVICES.items() if "POSTGRES_PASSWORD" in str(service)}
    assert knows == {"postgres", "migrate"}
    for name in ("retrieval", "seed"):
        assert SERVICES[name]["environment"]["POSTGRES_URL"].startswith("postgresql://weir_service:")
    assert SERVICES["retrieval"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert "restart" in SERVICES["migrate"]
    assert SERVICES["migrate"]["restart"] == "no"


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


def test_the_stores_are_reached_by_retrieval_alone_and_by_the_storm_bench_that_silences_one():
    assert COMPOSE["networks"]["store"]["internal"]
    assert {name for name, service in SERVICES.items() if "store" in service["networks"]} == {
        "postgres", "redis", "retrieval", "seed", "migrate", "storm",
    }  # fmt: skip


def test_only_those_with_a_page_or_an_api_reach_outside():
    inside = {name for name, network in COMPOSE["networks"].items() if (network or {}).get("internal")}
    outside = {name for name, service in SERVICES.items() if set(service["networks"]) - inside}
    assert outside == {name for name, service in SERVICES.items() if "ports" in service} | {"model"}


def test_the_governor_reaches_the_router_and_no_worker():
    """What comes past the cap must still be admitted, queued and counted."""
    governor = SERVICES["governor"]
    assert governor["networks"] == ["edge"]
    assert governor["environment"]["GOVERNOR_UPSTREAM_URL"].endswith("http://router:8000/v1/completions}")
    assert governor["depends_on"] == {"router": {"condition": "service_healthy"}}


def test_every_image_of_ours_has_its_target_its_source_and_the_settings_that_compose_gives():
    """`docker compose build` needs a target; the target a tree, an entry point and a check on its own port."""
    dockerfile = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
    (copied,) = re.findall(r"for service in ([a-z ]+); do", dockerfile)
    modules = {service: f"services.{service}" for service in copied.split()} | {"storm": "services.lab.storm"}
    assert "cp -a lab/__init__.py lab/storm /tree/storm/services/lab/" in dockerfile
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", dockerfile, re.MULTILINE | re.DOTALL))
    for service, module in modules.items():
        stage = stages[service]
        assert f"COPY --from=source /tree/{service} /app" in stage
        assert f'ENTRYPOINT ["python", "-m", "{module}"]' in stage
        variable = f"{service.upper()}_PORT"
        port = next(each for each in SETTINGS if each.startswith(service))
        assert f"ENV {variable}={SERVICES[port]['environment'][variable]}" in stage
        assert f'healthcheck.py "${variable}"' in stage
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets - {"worker-torch"} == set(modules)


def test_the_storm_bench_reaches_nothing_outside_and_is_reached_by_the_router_alone():
    """What can put the lab under load, slow its workers and silence its cache has no port on any machine."""
    storm = SERVICES["storm"]
    assert "ports" not in storm
    assert set(storm["networks"]) == {"fleet", "store"}
    assert SERVICES["router"]["environment"]["STORM_URL"] == "http://storm:8090"
    assert storm["environment"]["TENANTS_FILE"] == "${TENANTS_FILE:+/etc/weir/tenants.yaml}"


def test_only_what_publishes_no_port_takes_faults_from_its_network():
    trusting = {name for name, service in SERVICES.items() if service.get("environment", {}).get("LAB_NETWORK")}
    assert trusting - {"router"} == {"worker-0", "worker-1", *MODEL_WORKERS, "model"}
    assert not any("ports" in SERVICES[name] for name in trusting - {"router"})


def test_nothing_of_torch_is_built_or_started_without_a_profile():
    """`docker compose up --build` builds what it starts."""
    large = {name for name, service in SERVICES.items() if "torch" in str(service.get("build", ""))}
    assert large == {"model", *MODEL_WORKERS}
    assert SERVICES["model"]["profiles"] == ["gpu", "torch"]
    assert {name: SERVICES[name]["profiles"] for name in MODEL_WORKERS} == {
        name: [profile] for name, profile in MODEL_WORKERS.items()
    }
    waited_for = SERVICES["router"]["depends_on"]
    assert all(waited_for[name] == {"condition": "service_healthy", "required": False} for name in MODEL_WORKERS)


def test_a_worker_with_a_model_does_not_fetch_it():
    """Weights come from outside, and what computes with them reaches nobody but the router."""
    for name in MODEL_WORKERS:
        assert SERVICES[name]["networks"] == ["fleet"]
        assert SERVICES[name]["depends_on"] == {"model": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["volumes"] == SERVICES["model"]["volumes"] == ["models:/models"]


def test_a_gpu_is_asked_for_by_the_profile_gpu_alone():
    (device,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert [name for name, service in SERVICES.items() if "deploy" in service] == ["worker-gpu"]


def test_a_simulated_worker_stays_one_whatever_env_says():
    assert {SERVICES[name]["environment"]["ENGINE"] for name in ("worker-0", "worker-1")} == {"simulated"}


@pytest.mark.parametrize(
    ("model_id", "fetched"),
    [("tiny", False), ("tiny-30m", False), ("/models/mine", False), ("./mine", False), ("org/model", True)],
)
def test_what_is_no_name_on_the_hub_is_not_fetched(model_id, fetched, tmp_path):
    """The command itself, with `hf` replaced by a program that says what it was given."""
    (tmp_path / "hf").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "hf").chmod(0o755)
    script = SERVICES["model"]["command"][0].replace("$$", "$")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MODEL_ID": model_id, "MODEL_REVISION": "r1", "MODEL_CACHE_DIR": "/m"}
    done = subprocess.run(
        [*SERVICES["model"]["entrypoint"], script], env=env, capture_output=True, text=True, check=True
    )
    expected = f"download {model_id} --revision r1 --cache-dir /m"
    assert done.stdout.startswith(expected) if fetched else done.stdout == ""
