"""Prometheus looks where the services are, in containers and embedded, and calls them the same in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.storm.config import StormSettings
from services.governor.config import GovernorSettings
from services.retrieval.config import RetrievalSettings
from services.router.config import RouterSettings
from services.worker.config import WorkerSettings

ROOT = Path(__file__).parents[2]
CONFIGS = ("prometheus.yml", "prometheus.embedded.yml")
PORTS = {
    "router": RouterSettings.model_fields["metrics_port"].default,
    "retrieval": RetrievalSettings.model_fields["metrics_port"].default,
    "worker": WorkerSettings.model_fields["metrics_port"].default,
    "governor": GovernorSettings.model_fields["metrics_port"].default,
    "storm": StormSettings.model_fields["metrics_port"].default,
}
EXPORTERS = {"postgres": "postgres-exporter", "valkey": "valkey-exporter"}


def read(path: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return content


def targets(config: str) -> dict[tuple[str, str], str]:
    """(job, instance) -> address."""
    return {
        (job["job_name"], group["labels"]["instance"]): address
        for job in read(f"grafana/{config}")["scrape_configs"]
        for group in job.get("static_configs", [])
        for address in group["targets"]
    }


def looked_for_by_name() -> dict[str, list[dict[str, Any]]]:
    """By job, what Prometheus asks the resolver for."""
    jobs = read("grafana/prometheus.yml")["scrape_configs"]
    return {job["job_name"]: job["dns_sd_configs"] for job in jobs if "dns_sd_configs" in job}


def test_both_configurations_know_the_same_instances():
    exported = {(job, job) for job in EXPORTERS}  # only the containers have exporters
    assert targets(CONFIGS[0]).keys() - exported == targets(CONFIGS[1]).keys()
    assert exported <= targets(CONFIGS[0]).keys()


def test_in_containers_each_instance_is_a_service_at_its_metrics_port():
    services = read("docker-compose.yml")["services"]
    found = targets("prometheus.yml")
    scraped = {instance: found[job, instance] for job, instance in found if job not in {"prometheus", *EXPORTERS}}
    assert scraped == {name: f"{name}:{services[name]['environment']['METRICS_PORT']}" for name in scraped}
    exported = {EXPORTERS[job]: found[job, job] for job in EXPORTERS}
    assert exported == {name: f"{name}:{services[name]['environment']['EXPORTER_PORT']}" for name in exported}


@pytest.mark.parametrize(
    ("job", "variable"), [("router", "ROUTER_NAME"), ("worker", "WORKER_NAME"), ("desk", "DESK_PORT")]
)
def test_what_comes_with_a_profile_is_looked_for_by_name(job, variable):
    services = read("docker-compose.yml")["services"]
    (looked_for,) = looked_for_by_name()[job]
    optional = {name for name, service in services.items() if variable in service.get("environment", {})} - {
        instance for _, instance in targets("prometheus.yml")
    }
    assert set(looked_for["names"]) == optional
    assert {services[name]["environment"]["METRICS_PORT"] for name in optional} == {looked_for["port"]}


def test_nothing_else_is_looked_for_by_name_and_what_is_found_is_called_by_it():
    assert looked_for_by_name().keys() == {"router", "worker", "desk"}
    renamed = {"source_labels": ["__meta_dns_name"], "regex": "(.+)", "target_label": "instance"}
    for job in read("grafana/prometheus.yml")["scrape_configs"]:
        assert job.get("relabel_configs", []) == ([renamed] if "dns_sd_configs" in job else [])


def test_embedded_each_instance_is_at_its_default_port():
    found = targets("prometheus.embedded.yml")
    assert found["router", "router"] == f"127.0.0.1:{PORTS['router']}"
    assert found["retrieval", "retrieval"] == f"127.0.0.1:{PORTS['retrieval']}"
    assert found["governor", "governor"] == f"127.0.0.1:{PORTS['governor']}"
    assert found["storm", "storm"] == f"127.0.0.1:{PORTS['storm']}"
    assert found["worker", "worker-0"] == f"127.0.0.1:{PORTS['worker']}"
    assert found["worker", "worker-1"] == f"127.0.0.1:{PORTS['worker'] + 1}"


def test_both_configurations_load_the_rules_and_containers_find_them_there():
    rules = sorted(path.name for path in (ROOT / "grafana" / "rules").glob("*.yml"))
    assert rules == ["alerts.yml", "recording.yml"]
    assert {tuple(read(f"grafana/{config}")["rule_files"]) for config in CONFIGS} == {("rules/*.yml",)}
    mounts = [volume.split(":") for volume in read("docker-compose.yml")["services"]["prometheus"]["volumes"]]
    places = {here: there for here, there, *_ in mounts}
    assert places["./grafana/prometheus.yml"] == "/etc/prometheus/prometheus.yml"
    assert places["./grafana/rules"] == "/etc/prometheus/rules"


def test_the_provisioned_source_is_the_one_that_dashboards_name():
    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert (source["uid"], source["url"]) == ("prometheus", "http://prometheus:9090")
