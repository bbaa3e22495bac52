"""deploy/examples/vllm: the product's own loaders take the files, and the proxies' files fit the router's bounds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from docs.headings import anchors
from services.router.config import RouterSettings
from services.router.production import examine
from services.router.tenancy import tenantsfile
from services.router.tenancy.tenantsfile import TenantsFile
from services.router.workers import workersfile
from services.runtime.apikey import new_key
from services.runtime.health import READY
from services.runtime.machine import Machine
from services.runtime.server import BACKLOG
from tests.grafana.queries import exported_by, selections

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "examples" / "vllm"
ASSIGNMENT = re.compile(r"^([A-Z][A-Z0-9_]*)=(.*)$", re.MULTILINE)
MACHINE = Machine(open_files=1 << 20, cores=4, memory_bytes=1 << 36, backlog=BACKLOG)
FIELDS = RouterSettings.model_fields
MIB = 1 << 20


def text_of(name: str) -> str:
    return (EXAMPLE / name).read_text(encoding="utf-8")


def assigned(name: str) -> dict[str, str]:
    return dict(ASSIGNMENT.findall(text_of(name)))


Load = Callable[..., RouterSettings]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example, in which the router is started: the paths in it are as seen from there."""
    copy = shutil.copytree(EXAMPLE, tmp_path / "fleet", ignore=shutil.ignore_patterns("tls", ".env"))
    for name in FIELDS:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(copy)
    return copy


def written(folder: Path, *files: str, **chosen: str) -> None:
    """`.env` as README.md makes it: one file after another, and then what was filled in."""
    lines = "".join(f"{name}={value}\n" for name, value in chosen.items())
    (folder / ".env").write_text("".join(text_of(name) for name in files) + lines, encoding="utf-8")


def with_keys(folder: Path) -> None:
    """Each tenant with a key of its own."""
    file = folder / "tenants.yaml"
    file.write_text(re.sub("sha256:[0-9a-f]{64}", lambda _: new_key()[1], file.read_text(encoding="utf-8")))


def with_certificate(folder: Path) -> None:
    issued = trustme.CA().issue_cert("router.example.org")
    (folder / "tls").mkdir()
    issued.cert_chain_pems[0].write_to_path(folder / "tls" / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "tls" / "key.pem")


def dangers() -> dict[str, str]:
    """What `weir doctor --production` names in the current folder: what was seen, by check."""
    return {found.check: found.seen for found in examine(RouterSettings, MACHINE) if found.severity in ("warn", "fail")}


# ---- settings, tenants, workers


@pytest.mark.parametrize("name", ["router.env", "tls.env"])
def test_each_line_is_a_setting_of_the_router(name: str) -> None:
    assert [setting for setting in assigned(name) if setting.lower() not in FIELDS] == []


def test_the_router_starts_with_the_example_as_it_stands(folder: Path) -> None:
    written(folder, "router.env")
    settings = RouterSettings()  # type: ignore[call-arg]
    assert (settings.host, settings.tls.certificate) == ("127.0.0.1", None)
    assert len(settings.worker_specs()) == 4


def test_the_cap_is_the_sum_of_the_slots_that_the_servers_batch() -> None:
    specs = workersfile.read(EXAMPLE / "workers.yaml")
    assert {spec.kind for spec in specs} == {"openai"}
    batch = re.findall(r"--max-num-seqs (\d+)", text_of("workers.yaml"))
    assert {str(spec.slots) for spec in specs} == set(batch)
    assert assigned("router.env")["MAX_INFLIGHT"] == str(sum(int(str(spec.slots)) for spec in specs))


def test_the_tenants_have_keys_classes_and_deadlines_that_the_router_takes() -> None:
    file: TenantsFile = tenantsfile.read(EXAMPLE / "tenants.yaml", float(assigned("router.env")["MAX_DEADLINE_MS"]))
    assert file.with_example_keys == [tenant.id for tenant in file.tenants]  # no secret is in the repository
    assert {entry.name for entry in file.classes} == {tenant.class_name for tenant in file.tenants}


def test_only_what_has_to_be_filled_in_is_dangerous(folder: Path) -> None:
    written(folder, "router.env")
    assert list(dangers()) == ["API keys", "admin"]
    assert all("FILL IN" in text_of(name) for name in ("router.env", "tenants.yaml", "tls.env", "workers.yaml"))


def test_behind_a_proxy_nothing_is_dangerous_once_that_is_filled_in(folder: Path) -> None:
    written(folder, "router.env", ADMIN_TOKEN="a-token-of-sixteen-characters")
    with_keys(folder)
    assert dangers() == {}


def test_a_router_that_ends_tls_itself_asks_for_certificate_and_keys_at_once(folder: Path) -> None:
    written(folder, "router.env", "tls.env", ADMIN_TOKEN="a-token-of-sixteen-characters")
    (fault,) = dangers().values()
    assert "TLS_CERT_FILE, TLS_KEY_FILE: the certificate or its key cannot be loaded" in fault
    assert "chat, search, nightly in TENANTS_FILE still have the example keys" in fault


def test_a_router_that_ends_tls_itself_is_not_dangerous_once_they_are_there(folder: Path) -> None:
    written(folder, "router.env", "tls.env", ADMIN_TOKEN="a-token-of-sixteen-characters")
    with_keys(folder)
    with_certificate(folder)
    assert dangers() == {}


def test_a_cap_below_the_slots_would_be_named(folder: Path) -> None:
    written(folder, "router.env", MAX_INFLIGHT="255")
    assert dangers()["in-flight cap"] == "MAX_INFLIGHT=255, and the workers have 256 slots"


# ---- proxies: what is bounded there is above the router's bound, and nothing is held back or sent twice


def bound(name: str, kind: str) -> float:
    """The highest value that a setting may have."""
    (found,) = (getattr(rule, kind) for rule in FIELDS[name].metadata if hasattr(rule, kind))
    return float(found)


LONGEST_S = bound("max_deadline_ms", "le") / 1000
IDLE_S = FIELDS["idle_timeout_s"].default
BODY_BYTES = FIELDS["max_body_bytes"].default
CONNECTIONS = FIELDS["max_connections"].default


def directives(name: str) -> dict[str, list[str]]:
    """The lines of HAProxy's or nginx's file: the first word, and the rest of each line."""
    found: dict[str, list[str]] = {}
    for line in text_of(name).splitlines():
        words = line.split("#")[0].strip().rstrip(";{ ").split()
        if words:
            found.setdefault(words[0], []).append(" ".join(words[1:]))
    return found


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(m?s)", text).groups()  # type: ignore[union-attr]
    return float(number) / {"s": 1, "ms": 1000}[unit]


def test_the_example_waits_no_longer_than_the_proxies() -> None:
    assert float(assigned("router.env")["MAX_DEADLINE_MS"]) / 1000 <= LONGEST_S


def test_haproxy_waits_for_the_longest_answer_repeats_nothing_and_asks_for_readiness() -> None:
    found = directives("haproxy.cfg")
    times = {words.split()[0]: seconds(words.split()[1]) for words in found["timeout"]}
    assert min(times["server"], times["client"]) > LONGEST_S
    assert times["http-keep-alive"] < IDLE_S
    assert found["retries"] == ["0"]
    assert "retry-on" not in found
    assert {f"httpchk GET {READY}", "http-no-delay", "abortonclose"} <= set(found["option"])
    assert "http-buffer-request" not in found["option"]
    assert found["maxconn"] == [str(CONNECTIONS)]
    assert found["server"][0].split()[1] == router_address()


def test_nginx_waits_for_the_longest_answer_repeats_nothing_and_holds_no_answer_back() -> None:
    found = {name: values[0] for name, values in directives("nginx.conf").items()}
    assert seconds(found["proxy_read_timeout"]) > LONGEST_S
    assert seconds(found["keepalive_timeout"]) < IDLE_S
    assert (found["proxy_buffering"], found["proxy_next_upstream"]) == ("off", "off")
    assert "proxy_ignore_client_abort" not in found
    assert int(found["client_max_body_size"].removesuffix("m")) * MIB > BODY_BYTES
    assert router_address() in [words.split()[0] for words in directives("nginx.conf")["server"] if words]


def values_of(tree: Any, name: str) -> list[Any]:
    """Every value under a key of this name, at any depth."""
    if isinstance(tree, list):
        return [found for each in tree for found in values_of(each, name)]
    if not isinstance(tree, Mapping):
        return []
    own = [tree[name]] if name in tree else []
    return own + [found for value in tree.values() for found in values_of(value, name)]


def test_envoy_waits_for_the_longest_answer_repeats_nothing_and_asks_for_readiness() -> None:
    tree = yaml.safe_load(text_of("envoy.yaml"))
    (route,) = values_of(tree, "route")
    (idle,) = values_of(tree, "stream_idle_timeout")
    assert min(seconds(route["timeout"]), seconds(idle)) > LONGEST_S
    upstream = values_of(tree["static_resources"]["clusters"], "idle_timeout")
    assert [seconds(time) < IDLE_S for time in upstream] == [True]
    assert values_of(tree, "retry_policy") == []
    (thresholds,) = values_of(tree, "thresholds")
    assert thresholds == [
        {"max_connections": CONNECTIONS, "max_pending_requests": CONNECTIONS, "max_requests": CONNECTIONS,
         "max_retries": 0}
    ]  # fmt: skip
    assert values_of(tree, "http_health_check") == [{"path": READY}]
    assert "filters.http.buffer" not in text_of("envoy.yaml")
    (endpoint,) = values_of(tree["static_resources"]["clusters"], "socket_address")
    assert f"{endpoint['address']}:{endpoint['port_value']}" == router_address()


def router_address() -> str:
    found = assigned("router.env")
    return f"{found['HOST']}:{found['ROUTER_PORT']}"


def test_behind_a_proxy_all_clients_may_share_its_address_and_before_it_none_may() -> None:
    assert (assigned("router.env")["MAX_SOURCE_SHARE"], assigned("tls.env")["MAX_SOURCE_SHARE"]) == ("1", "0.25")
    quarter = str(CONNECTIONS // 4)
    assert f"sc0_conn_cur gt {quarter}" in text_of("haproxy.cfg")
    assert f"limit_conn clients {quarter};" in text_of("nginx.conf")


def test_the_drain_is_noticed_before_it_ends() -> None:
    """Two failed checks, a second apart, in HAProxy and Envoy."""
    assert float(assigned("router.env")["DRAIN_DELAY_S"]) > 2
    assert "inter 1s fall 2" in text_of("haproxy.cfg")
    (health,) = values_of(yaml.safe_load(text_of("envoy.yaml")), "health_checks")
    assert (health[0]["interval"], health[0]["unhealthy_threshold"]) == ("1s", 2)


# ---- Prometheus


PROMETHEUS: dict[str, Any] = yaml.safe_load(text_of("prometheus.yml"))
ALERTS = [rule for group in yaml.safe_load(text_of("fleet.yml"))["groups"] for rule in group["rules"]]
every_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])


def test_the_rules_of_the_repository_are_loaded_by_reference_beside_those_of_a_fleet() -> None:
    loaded = [path.resolve() for pattern in PROMETHEUS["rule_files"] for path in EXAMPLE.glob(pattern)]
    shared = ROOT / "grafana" / "rules"
    assert set(loaded) == {*shared.glob("*.yml"), EXAMPLE / "fleet.yml"}
    assert {shared / "alerts.yml", shared / "recording.yml"} < set(loaded)
    groups = [group for path in loaded[:-1] for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]
    names = {rule.get("alert") for group in groups for rule in group["rules"]}
    assert names.isdisjoint(rule["alert"] for rule in ALERTS)


def test_prometheus_reads_the_routers_metrics_and_the_servers_of_the_worker_list() -> None:
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in PROMETHEUS["scrape_configs"]}
    found = assigned("router.env")
    assert targets["router"] == [f"{found['METRICS_HOST']}:{found['METRICS_PORT']}"]
    servers = [
        spec.url.removeprefix("http://").removesuffix("/v1") for spec in workersfile.read(EXAMPLE / "workers.yaml")
    ]
    assert targets["vllm"] == servers


@every_alert
def test_an_alert_asks_for_what_the_router_exports(rule: dict[str, Any]) -> None:
    asked = list(selections(rule["expr"]))
    assert asked
    assert [series for series, job in asked if job != "router" or series not in exported_by("router")] == []


@every_alert
def test_an_alert_says_how_bad_it_is_what_it_saw_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert "$value" in rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    text = (ROOT / page).read_text(encoding="utf-8")
    assert anchor in anchors(text)
    assert f"`{rule['alert']}`" in text


# ---- the page


def test_the_page_names_every_file_of_the_folder() -> None:
    page = text_of("README.md")
    files = {path.name for path in EXAMPLE.iterdir() if path.is_file()} - {"README.md", ".env"}
    assert [name for name in sorted(files) if f"`{name}`" not in page] == []


def test_each_marked_place_is_in_the_pages_list() -> None:
    marked = {
        path.name for path in EXAMPLE.iterdir() if path.is_file() and "FILL IN" in path.read_text(encoding="utf-8")
    }
    (table,) = re.findall(r"## What has to be filled in\n(.*?)\n## ", text_of("README.md"), re.DOTALL)
    assert marked - {"README.md", ".env"} == set(re.findall(r"^\| `([\w.]+)`", table, re.MULTILINE))
