"""What docker-compose.yml promises: loopback only, confined, in order of health, and no setting that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.storm.config import StormSettings
from services.desk.config import DeskSettings
from services.governor.config import RENAMED, GovernorSettings
from services.retrieval.config import MigrateSettings, RetrievalSettings
from services.router.config import RouterSettings
from services.runtime.settings import ServiceSettings
from services.worker.config import WorkerSettings

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HA_ROUTERS = ("ha-router-0", "ha-router-1", "ha-router-2")
HA_WORKERS = ("ha-worker-0", "ha-worker-1", "ha-worker-2", "ha-worker-3")
SETTINGS: dict[str, type[ServiceSettings]] = {
    "router": RouterSettings,
    "retrieval": RetrievalSettings,
    "governor": GovernorSettings,
    "storm": StormSettings,
    "desk": DeskSettings,
    "seed": RetrievalSettings,
    "migrate": MigrateSettings,
    "worker-0": WorkerSettings,
    "worker-1": WorkerSettings,
    "worker-gpu": WorkerSettings,
    "worker-torch": WorkerSettings,
    **dict.fromkeys(HA_ROUTERS, RouterSettings),
    **dict.fromkeys(HA_WORKERS, WorkerSettings),
}
MODEL_WORKERS = {"worker-gpu": "gpu", "worker-torch": "torch"}  # and their profiles
FROM_THE_IMAGE = {
    "router",
    "retrieval",
    "governor",
    "storm",
    "desk",
    "worker-0",
    "worker-1",
    *MODEL_WORKERS,
    *HA_ROUTERS,
    *HA_WORKERS,
}  # their health check is in it
LEAVES = {"seed", "model", "secrets", "migrate"}
WITHOUT_HEALTH = LEAVES | {"locust"}

every_service = pytest.mark.parametrize("name", sorted(SERVICES))
every_service_of_ours = pytest.mark.parametrize("name", sorted(SETTINGS))
INNER_TOKEN = "internal:/run/weir/internal:ro"
OWNERS_PASSWORD = "database:/run/weir/database:ro"
SERVICE_PASSWORD = "database-service:/run/weir/database-service:ro"
MONITORS_PASSWORD = "database-monitor:/run/weir/database-monitor:ro"
EXPORTERS = {"postgres-exporter", "valkey-exporter"}
IN_THE_IMAGE = {"EMBED_MODEL_PATH"}
FROM_A_FILE = {"INTERNAL_TOKEN"}  # INTERNAL_TOKEN_FILE has it, whoever made it
OF_A_PROXY = {"TLS_CERT_FILE", "TLS_KEY_FILE", "TLS_CLIENT_CA_FILE"}
"""Other containers ask the router over HTTP: a proxy before the published port speaks TLS."""
OWN_SECRETS = {
    **{name: {"ADMIN_TOKEN"} for name in ("router", *HA_ROUTERS)},
    "governor": {"GOVERNOR_TOKENS", "GOVERNOR_UPSTREAM_KEY"},
    "retrieval": {"CACHE_KEY_SECRET"},
    "seed": {"CACHE_KEY_SECRET"},
    "migrate": {"CACHE_KEY_SECRET"},
    "model": {"HF_TOKEN"},
    "secrets": {
        "INTERNAL_TOKEN",
        "POSTGRES_PASSWORD",
        "POSTGRES_SERVICE_PASSWORD",
        "POSTGRES_MONITOR_PASSWORD",
        "GRAFANA_PASSWORD",
    },
}
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


def networks(service: dict[str, Any]) -> list[str]:
    """None for what has no network at all."""
    assert service.get("network_mode", "none") == "none"
    return [] if "network_mode" in service else service["networks"]


@every_service
def test_only_loopback_ports_are_published(name):
    """The router's moves with a variable that tells the router so."""
    published = "${ROUTER_ADDRESS:-127.0.0.1}:" if name == "router" else "127.0.0.1:"
    assert all(port.startswith(published) for port in SERVICES[name].get("ports", []))


def test_the_router_judges_lab_mode_by_the_address_at_which_its_port_is_published():
    environment = SERVICES["router"]["environment"]
    assert environment["PUBLISHED_ADDRESS"] == "${ROUTER_ADDRESS:-127.0.0.1}"
    assert environment["LAB_NETWORK"] == "false"


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
    """What goes on running logs in as a user that owns nothing, with a password of its own."""
    url, file = "postgresql://weir_service@postgres:5432/weir", "/run/weir/database-service/password"
    for name in ("retrieval", "seed", "migrate"):
        assert SERVICES[name]["environment"]["POSTGRES_URL"] == url
        assert SERVICES[name]["environment"]["POSTGRES_PASSWORD_FILE"] == file
    assert {name for name, each in SERVICES.items() if "POSTGRES_MIGRATE" in str(each)} == {"migrate"}
    assert SERVICES["migrate"]["environment"]["POSTGRES_MIGRATE_PASSWORD_FILE"] == "/run/weir/database/password"
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
    old = RENAMED.keys() if name == "governor" else set()
    assert SERVICES[name]["environment"].keys() - known == old


@every_service_of_ours
def test_every_setting_of_a_service_reaches_its_container(name):
    settings = {field.upper() for field in SETTINGS[name].model_fields}
    assert settings - SERVICES[name]["environment"].keys() == (settings & (IN_THE_IMAGE | FROM_A_FILE | OF_A_PROXY))


@every_service
def test_no_container_holds_a_secret_of_another(name):
    """No `env_file` of everything, and by name its own ones alone; what ends in _FILE says where, not what."""
    service = SERVICES[name]
    files = [file["path"] for file in service.get("env_file", [])]
    assert files == (["${UPSTREAM_KEYS_FILE:-.env.upstreams}"] if name == "router" else [])
    held = {each for each in service.get("environment", {}) if SECRET.search(each) and not each.endswith("_FILE")}
    settings_of_size = {each for each in held if each.endswith("_TOKENS") and each != "GOVERNOR_TOKENS"}
    per_token = {"SIM_PREFILL_MS_PER_TOKEN"}
    assert held - settings_of_size - per_token == OWN_SECRETS.get(name, set())


def test_each_secret_is_mounted_where_it_is_needed_alone():
    def mounted(volume: str) -> set[str]:
        return {name for name, each in SERVICES.items() if volume in map(str, each.get("volumes", []))}

    assert mounted(INNER_TOKEN) == {*SETTINGS, "prometheus", "locust"}
    assert mounted(OWNERS_PASSWORD) == {"postgres", "migrate"}
    assert mounted(SERVICE_PASSWORD) == {"retrieval", "seed", "migrate"}
    assert mounted(MONITORS_PASSWORD) == {"postgres-exporter", "migrate"}
    assert mounted("grafana-password:/run/weir/grafana:ro") == {"grafana"}
    for name in SETTINGS:
        assert SERVICES[name]["environment"]["INTERNAL_TOKEN_FILE"] == "/run/weir/internal/token"


def test_every_part_that_needs_a_secret_waits_until_it_is_made():
    def waits(name: str) -> bool:
        waited = SERVICES[name].get("depends_on", {})
        return "secrets" in waited or any(waits(each) for each in waited)

    needing = {name for name, each in SERVICES.items() if "/run/weir/" in str(each.get("volumes", ""))} - {"secrets"}
    assert {name for name in needing if not waits(name)} == set()


def test_what_makes_the_secrets_reaches_no_network_and_no_power():
    service = SERVICES["secrets"]
    assert service["network_mode"] == "none"
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service


def test_there_is_no_default_password():
    assert "POSTGRES_PASSWORD" not in SERVICES["postgres"]["environment"]
    assert "GF_SECURITY_ADMIN_PASSWORD" not in SERVICES["grafana"]["environment"]
    assert SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/weir/database/password"
    assert SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/weir/grafana/password"


def test_grafana_answers_by_one_name_so_that_no_page_is_rebound_to_it():
    environment = SERVICES["grafana"]["environment"]
    assert (environment["GF_SERVER_ENFORCE_DOMAIN"], environment["GF_SERVER_DOMAIN"]) == ("true", "127.0.0.1")
    assert environment["GF_SERVER_ROOT_URL"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize("config", ["prometheus.yml", "prometheus.embedded.yml"])
def test_prometheus_shows_the_token_to_every_part_of_ours(config):
    jobs = yaml.safe_load((ROOT / "grafana" / config).read_text(encoding="utf-8"))["scrape_configs"]
    files = {job["job_name"]: job.get("authorization", {}).get("credentials_file") for job in jobs}
    expected = "/run/weir/internal/token" if config == "prometheus.yml" else "../.weir/internal-token"
    others = {"prometheus", "postgres", "valkey"}  # which hold nothing of ours
    ours = ["router", "retrieval", "governor", "storm", "worker", *(["desk"] if config == "prometheus.yml" else [])]
    assert {job: file for job, file in files.items() if job not in others} == dict.fromkeys(ours, expected)
    assert {files[job] for job in others & files.keys()} == {None}


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_the_grace_exceeds_the_drain(name):
    grace = SERVICES[name]["stop_grace_period"].removeprefix("${STOP_GRACE_PERIOD:-").removesuffix("s}")
    given = SERVICES[name]["environment"].get("DRAIN_DELAY_S") or "0"  # without a value: as .env says
    delay_s = float(str(given).removeprefix("${DRAIN_DELAY_S:-").removesuffix("}"))
    last_words_s = 5  # for what is cut, the metrics listener and the spans
    assert float(grace) > delay_s + SETTINGS[name].model_fields["drain_timeout_s"].default + last_words_s


def test_the_router_gives_a_load_balancer_time_to_notice_that_it_leaves():
    assert SERVICES["router"]["environment"]["DRAIN_DELAY_S"] == "${DRAIN_DELAY_S:-5}"


@every_service
def test_a_stop_reaches_what_it_is_meant_for(name):
    """An init passes signals on, so a stop during start-up is obeyed; but not to a user it may not signal."""
    changes_user = "SETUID" in SERVICES[name].get("cap_add", [])
    assert SERVICES[name]["init"] is not changes_user


def test_the_stores_are_reached_by_retrieval_alone_and_by_the_storm_bench_that_silences_one():
    assert COMPOSE["networks"]["store"]["internal"]
    assert {name for name, service in SERVICES.items() if "store" in networks(service)} == {
        "postgres", "redis", "retrieval", "seed", "migrate", "storm", *EXPORTERS,
    }  # fmt: skip


def test_only_those_with_a_page_or_an_api_reach_outside():
    inside = {name for name, network in COMPOSE["networks"].items() if (network or {}).get("internal")}
    outside = {name for name, service in SERVICES.items() if set(networks(service)) - inside}
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
    modules = {service: f"services.{service}" for service in copied.split()} | {"storm": "loadtests.storm"}
    assert "cp -a loadtests/storm loadtests/load /tree/storm/loadtests/" in dockerfile
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", dockerfile, re.MULTILINE | re.DOTALL))
    for service, module in modules.items():
        stage = stages[service]
        assert f"COPY --from=source /tree/{service} /app" in stage
        assert f'ENTRYPOINT ["python", "-m", "{module}"]' in stage
        variable = f"{service.upper()}_PORT"
        port = next(each for each in SETTINGS if each.startswith(service))
        assert f"ENV {variable}={SERVICES[port]['environment'][variable]}" in stage
        asked = "METRICS_PORT" if service == "governor" else variable  # the governor's own port speaks no HTTP
        assert f'healthcheck.py "${asked}"' in stage
    assert f"METRICS_PORT={SERVICES['governor']['environment']['METRICS_PORT']}" in stages["governor"]
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets - {"worker-torch", "locust", "exporters"} == set(modules)


def test_the_command_line_is_on_the_path_of_every_service():
    dockerfile = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
    assert "/tree/$service/bin/weir" in dockerfile
    assert "ENV PATH=/opt/weir/bin:/app/bin:$PATH" in dockerfile
    assert re.search(r"cp -a __init__.py compiled.py healthcheck.py native core contracts runtime cli ", dockerfile)
    assert "-r service.txt -r cli.txt" in dockerfile


def test_every_image_of_ours_has_the_hot_path_as_machine_code_and_no_compiler():
    dockerfile = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
    stages = dict(re.findall(r"^FROM (\S+ AS \S+)\n(.*?)(?=^FROM |\Z)", dockerfile, re.MULTILINE | re.DOTALL))
    assert "compile_hot_path()" in stages["dependencies AS native"]
    before, after = stages["python AS source"].split("COPY --from=native /build/services/native services/native")
    assert "COPY services services" in before
    assert after.count(" native core ") == 2, "the services' trees, and the storm bench's"
    made = [name for name, lines in stages.items() if "gcc" in lines or "FROM native" in name]
    assert made == ["dependencies AS native"]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "services/native" in ignored, "what this machine compiled must not reach an image"


def test_an_exporter_reads_statistics_and_no_document():
    """It logs in as a user of its own, with a password that opens nothing else."""
    environment = SERVICES["postgres-exporter"]["environment"]
    assert environment["DATA_SOURCE_USER"] == "weir_monitor"
    assert environment["DATA_SOURCE_PASS_FILE"] == "/run/weir/database-monitor/password"
    assert SERVICES["migrate"]["environment"]["POSTGRES_MONITOR_URL"].startswith("postgresql://weir_monitor@")
    assert all(set(SERVICES[name]["networks"]) == {"fleet", "store"} for name in EXPORTERS)
    assert not any("ports" in SERVICES[name] for name in EXPORTERS)


def test_who_asks_workers_finds_those_with_a_model_by_their_names():
    for name in ("router", "storm"):
        assert "worker-gpu worker-torch" in SERVICES[name]["entrypoint"][2]
        assert SERVICES[name]["environment"]["WORKERS"] == "${WORKERS:-}"
    assert SERVICES["router"]["command"] == ["python", "-m", "services.router"]
    assert SERVICES["storm"]["command"] == ["python", "-m", "loadtests.storm"]


def test_the_folder_of_ones_own_documents_is_mounted_where_they_are_read():
    seed = SERVICES["seed"]
    mounted = {"type": "bind", "source": "${SEED_CORPUS:-docs}", "target": "/documents", "read_only": True}
    assert mounted in seed["volumes"]
    assert seed["command"] == ["/documents", "--tenant", "${SEED_TENANT:-demo}", "--progress", "none"]


def test_locusts_image_has_what_its_users_need():
    dockerfile = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
    stage = re.search(r"^FROM service AS locust\n(.*?)(?=^FROM |\n#)", dockerfile, re.MULTILINE | re.DOTALL)
    assert stage is not None
    assert "COPY --from=locust-dependencies /opt/weir /opt/weir" in stage[1]
    assert "COPY --from=source /tree/locust /app" in stage[1]
    assert "LOCUST_LOCUSTFILE=loadtests/locustfile.py" in stage[1]
    assert "loadtests/users loadtests/locustfile.py" in dockerfile


def test_the_storm_bench_reaches_nothing_outside_and_is_reached_by_the_router_alone():
    """What can put the lab under load, slow its workers and silence its cache has no port on any machine."""
    storm = SERVICES["storm"]
    assert "ports" not in storm
    assert set(storm["networks"]) == {"fleet", "store"}
    assert SERVICES["router"]["environment"]["STORM_URL"] == "http://storm:8090"
    assert storm["environment"]["TENANTS_FILE"] == "${TENANTS_FILE:+/etc/weir/tenants.yaml}"


def test_only_what_publishes_no_port_takes_faults_from_its_network():
    trusting = {
        name for name, service in SERVICES.items() if service.get("environment", {}).get("LAB_NETWORK") == "true"
    }
    assert trusting == {"worker-0", "worker-1", *MODEL_WORKERS}
    assert not any("ports" in SERVICES[name] for name in trusting)


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
        done = {"condition": "service_completed_successfully"}
        assert SERVICES[name]["depends_on"] == {"model": done, "secrets": done}
        assert SERVICES["model"]["volumes"] == ["models:/models"]
        assert SERVICES[name]["volumes"] == ["models:/models", INNER_TOKEN]


def test_a_gpu_is_asked_for_by_the_profile_gpu_alone():
    (device,) = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert [name for name, service in SERVICES.items() if "deploy" in service] == ["worker-gpu"]


def test_a_simulated_worker_stays_one_whatever_env_says():
    assert {SERVICES[name]["environment"]["ENGINE"] for name in ("worker-0", "worker-1", *HA_WORKERS)} == {"simulated"}
