"""What the profile `ha` of docker-compose.yml promises: equal routers that share their workers, behind one balancer."""

from __future__ import annotations

import re

from loadtests.runs.balanced import CONFIG
from services.desk.config import DeskSettings
from services.router.config import RouterSettings
from services.router.workers import workersfile
from services.runtime.health import READY
from services.worker.config import WorkerSettings
from tests.test_compose import COMPOSE, HA_ROUTERS, HA_WORKERS, ROOT, SERVICES, networks

WORKERS = ROOT / "deploy" / "ha" / "workers.yaml"
HA = {*HA_ROUTERS, *HA_WORKERS, "balancer", "exchange"}


def directives() -> list[list[str]]:
    """HAProxy's configuration: the words of each line, without comments and quotes."""
    lines = CONFIG.read_text(encoding="utf-8").splitlines()
    return [line.split("#")[0].replace('"', "").split() for line in lines if line.split("#")[0].strip()]


def test_what_the_profile_ha_adds_starts_with_it_alone_and_nothing_else_waits_for_it():
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["ha"]} == HA
    assert not any("ha" in service.get("profiles", []) for name, service in SERVICES.items() if name not in HA)
    waiting = {name for name, service in SERVICES.items() if HA & set(service.get("depends_on", {}))}
    assert waiting <= HA


def test_the_routers_of_the_profile_ha_differ_by_their_names_alone():
    places = [dict(SERVICES[name]["environment"]) for name in HA_ROUTERS]
    assert [place.pop("ROUTER_NAME") for place in places] == list(HA_ROUTERS)
    assert places[0] == places[1] == places[2]
    parts = [{key: value for key, value in SERVICES[name].items() if key != "environment"} for name in HA_ROUTERS]
    assert parts[0] == parts[1] == parts[2]


def test_they_share_the_workers_of_the_profile_and_call_them_as_prometheus_does():
    router = SERVICES["ha-router-0"]
    file = f"${{HA_WORKERS_FILE:-./{WORKERS.relative_to(ROOT)}}}"
    assert f"{file}:{router['environment']['WORKERS_FILE']}:ro" in router["volumes"]
    ports = {name: SERVICES[name]["environment"]["WORKER_PORT"] for name in HA_WORKERS}
    expected = [(name, "weir", f"http://{name}:{port}") for name, port in ports.items()]
    assert [(worker.name, worker.kind, worker.url) for worker in workersfile.read(WORKERS)] == expected
    assert all(SERVICES[name]["environment"]["WORKER_NAME"] == name for name in HA_WORKERS)


def test_they_exchange_through_one_store_that_evicts_nothing():
    assert SERVICES["ha-router-0"]["environment"]["EXCHANGE_URL"] == "redis://exchange:6379/0"
    command = SERVICES["exchange"]["command"]
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_no_router_that_is_alone_asks_the_workers_that_are_shared():
    """Nor does anything slow them: faults are for the stack's own."""
    asking = {name for name, service in SERVICES.items() if re.search(r"ha-worker-\d:|deploy/ha/workers", str(service))}
    assert asking == set(HA_ROUTERS)


def test_there_are_four_slots_or_more_for_each_router_that_shares():
    """Fewer change hands all the time: docs/operations/several-routers.md."""
    slots = WorkerSettings.model_fields["max_batch_size"].default
    assert slots * len(HA_WORKERS) >= 4 * len(HA_ROUTERS)


def test_clients_reach_the_routers_of_the_profile_ha_through_the_balancer_alone():
    def on(network: str) -> set[str]:
        return {name for name, service in SERVICES.items() if network in networks(service)}

    assert on("ha-front") == {"balancer", *HA_ROUTERS}
    assert on("ha-exchange") == {"exchange", *HA_ROUTERS}
    assert all(COMPOSE["networks"][name]["internal"] for name in ("ha-front", "ha-exchange"))
    assert SERVICES["balancer"]["networks"] == ["edge", "ha-front"]
    assert not any("ports" in SERVICES[name] for name in HA - {"balancer"})


def test_they_judge_lab_mode_by_the_balancers_port_and_clients_by_more_than_its_address():
    (port,) = SERVICES["balancer"]["ports"]
    place = SERVICES["ha-router-0"]["environment"]
    assert port == f"{place['PUBLISHED_ADDRESS']}:${{BALANCER_PORT:-8080}}:8080"
    assert place["LAB_NETWORK"] == "false"
    assert place["MAX_SOURCE_SHARE"] == "1"


def test_the_balancer_reads_the_configuration_that_the_runs_of_restarted_and_killed_routers_use():
    balancer = SERVICES["balancer"]
    assert balancer["volumes"] == [f"./{CONFIG.relative_to(ROOT)}:/usr/local/etc/haproxy/haproxy.cfg:ro"]
    asked = set(re.findall(r"\$\{([A-Z0-9_]+)\}", CONFIG.read_text(encoding="utf-8")))
    assert balancer["environment"].keys() == asked
    port = SERVICES["ha-router-0"]["environment"]["ROUTER_PORT"]
    servers = [balancer["environment"][words[2].strip("${}")] for words in directives() if words[0] == "server"]
    assert servers == [f"{name}:{port}" for name in HA_ROUTERS]
    assert balancer["environment"]["BIND"] == ":8080"


def test_the_balancer_asks_whether_a_router_is_ready_and_lets_go_of_what_no_client_waits_for():
    found = directives()
    assert ["option", "httpchk", "GET", READY] in found
    assert ["option", "abortonclose"] in found
    assert ["retry-on", "conn-failure"] in found, "what was sent may have been answered: it is not sent again"


def milliseconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(ms|s)", text)
    assert found is not None
    return float(found[1]) * {"ms": 1.0, "s": 1000.0}[found[2]]


def test_the_balancer_notices_a_router_that_leaves_long_before_it_stops_to_serve():
    (check,) = (words for words in directives() if words[:2] == ["default-server", "check"])
    noticed_ms = milliseconds(check[check.index("inter") + 1]) * int(check[check.index("fall") + 1])
    given = SERVICES["ha-router-0"]["environment"]["DRAIN_DELAY_S"]
    delay_s = float(given.removeprefix("${DRAIN_DELAY_S:-").removesuffix("}"))
    assert delay_s * 1000 >= 5 * noticed_ms


def test_the_balancer_waits_longer_than_any_deadline():
    waits = {words[1]: milliseconds(words[2]) for words in directives() if words[0] == "timeout"}
    assert min(waits["client"], waits["server"]) > RouterSettings.model_fields["max_deadline_ms"].default
    assert waits["http-keep-alive"] < RouterSettings.model_fields["idle_timeout_s"].default * 1000


def test_a_stopped_balancer_answers_what_is_open_and_ends_before_it_is_killed():
    balancer = SERVICES["balancer"]
    assert balancer["stop_signal"] == "SIGUSR1", "HAProxy ends at once at SIGTERM"
    grace = balancer["stop_grace_period"].removeprefix("${STOP_GRACE_PERIOD:-").removesuffix("}")
    (ends,) = (words[1] for words in directives() if words[0] == "hard-stop-after")
    assert milliseconds(ends) < milliseconds(grace)


def test_with_the_profile_desk_they_share_the_slots_that_it_lends_of_the_stacks_own_router():
    desk, place = SERVICES["desk"], SERVICES["desk"]["environment"]
    assert desk["profiles"] == ["desk"]
    assert "ports" not in desk
    (lent,) = workersfile.read(WORKERS.with_name("workers.desk.yaml"))
    assert (lent.kind, lent.desk) == ("openai", f"http://desk:{place['DESK_PORT']}/{lent.name}")
    assert lent.url == f"http://router:{SERVICES['router']['environment']['ROUTER_PORT']}/v1"
    slots = 2 * WorkerSettings.model_fields["max_batch_size"].default
    assert place["DESK_SERVERS"] == f"${{DESK_SERVERS:-{lent.name}={slots}}}"
    assert SERVICES["ha-router-0"]["depends_on"]["desk"] == {"condition": "service_healthy", "required": False}
    assert (
        DeskSettings.model_fields["desk_hold_s"].default * 1000
        >= RouterSettings.model_fields["max_deadline_ms"].default
    )
