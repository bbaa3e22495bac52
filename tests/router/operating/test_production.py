"""What is dangerous before a fleet: every check green and red, and what the start logs of it."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pydantic import SecretStr

from services.contracts.finding import ProductionFinding
from services.router.app import upstream_connections
from services.router.config import RouterSettings
from services.router.operating.production import CHECKS, MIB, Deployment, findings, listed_slots, warn_of_dangers
from services.router.production import examine
from services.router.workers.workersfile import from_urls, read
from services.runtime.apikey import new_key
from services.runtime.log import Log
from services.runtime.machine import Machine
from services.runtime.serve import open_files_needed
from services.runtime.server import BACKLOG
from services.runtime.settings import NO_LISTENER
from tests.router.rig import FakeWorker, answer, standing
from tests.virtual import run

TOKEN = SecretStr("a-token-of-sixteen-characters")
NEEDED = 4096


class Case(NamedTuple):
    """What is different from a sound deployment. `remedy`: what the finding says to set; empty: the check is green."""

    check: str
    settings: Mapping[str, Any] = {}
    slots: Sequence[int | None] = (32, 32)
    keys: Sequence[str] = ()
    machine: Machine = Machine()
    severity: str = "ok"
    remedy: str = ""


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    file = tmp_path / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": [{"id": "acme", "keys": [new_key()[1]]}]}))
    return file


def settings(tenants: Path, **values: Any) -> RouterSettings:
    sound: dict[str, Any] = {
        "tenants_file": tenants, "admin_token": TOKEN, "max_source_share": 1, "default_slo_ms": 60_000,
        "max_deadline_ms": 300_000, "default_ttft_ms": 5000,
    }  # fmt: skip
    chosen = {name: value for name, value in {**sound, **values}.items() if value is not UNSET}
    return RouterSettings(_env_file=None, **chosen)


UNSET = object()
CASES = (
    Case("in-flight cap", {"max_inflight": 64}),
    Case("in-flight cap", {"max_inflight": 63}, severity="fail", remedy="set MAX_INFLIGHT=64"),
    Case("in-flight cap", {"max_inflight": 64}, (32, 32, None), severity="fail", remedy="set MAX_INFLIGHT=65"),
    Case("in-flight cap", {"max_inflight": 65}, (32, 32, None)),
    Case("lab mode"),
    Case("lab mode", {"tenants_file": UNSET}, severity="fail", remedy="set TENANTS_FILE"),
    Case("lab network"),
    Case("lab network", {"lab_network": True}, severity="fail", remedy="set LAB_NETWORK=false"),
    Case("API keys"),
    Case("API keys", keys=("acme",), severity="fail", remedy="weir keys new"),
    Case("API keys", {"tenants_file": UNSET}, severity="skip"),
    Case("admin"),
    Case("admin", {"admin_token": UNSET, "internal_token": TOKEN}),
    Case("admin", {"admin_token": UNSET, "metrics_host": "10.0.0.5", "inner_network": True}),
    Case("admin", {"admin_token": UNSET}, severity="fail", remedy="set ADMIN_TOKEN"),
    Case("mechanisms"),
    Case("mechanisms", {"policy": "no-admission"}, severity="fail", remedy="set POLICY=weir"),
    Case("TLS"),
    Case("TLS", {"host": "0.0.0.0", "published_address": "127.0.0.1"}),
    Case("TLS", {"host": "0.0.0.0"}, severity="fail", remedy="set TLS_CERT_FILE and TLS_KEY_FILE"),
    Case("TLS", {"host": "203.0.113.7"}, severity="warn", remedy="set TLS_CERT_FILE"),  # documentation: not global
    Case("TLS", {"host": "8.8.8.8"}, severity="fail", remedy="set TLS_CERT_FILE"),
    Case("TLS", {"host": "router"}, severity="fail", remedy="set TLS_CERT_FILE"),
    Case("TLS", {"host": "10.0.0.5"}, severity="warn", remedy="set TLS_CERT_FILE"),
    Case("deadlines"),
    Case("deadlines", {"default_slo_ms": 30_000, "max_deadline_ms": 120_000, "default_ttft_ms": 2000}),
    Case("deadlines", {"default_slo_ms": UNSET}, severity="fail", remedy="set DEFAULT_SLO_MS"),
    Case("deadlines", {"max_deadline_ms": UNSET}, severity="fail", remedy="set MAX_DEADLINE_MS"),
    Case("deadlines", {"default_ttft_ms": UNSET}, severity="fail", remedy="set DEFAULT_TTFT_MS"),
    Case("source share"),
    Case("source share", {"max_source_share": 0.25}, severity="warn", remedy="set MAX_SOURCE_SHARE=1"),
    Case("source share", {"max_source_share": 0.25, "host": "0.0.0.0"}, severity="skip"),
    Case("source share", {"tenants_file": UNSET}, severity="skip"),
    Case("open files", machine=Machine(open_files=NEEDED)),
    Case("open files", severity="skip"),
    Case("open files", machine=Machine(open_files=NEEDED - 1), severity="fail", remedy=f"hard limit to {NEEDED}"),
    Case("processor", machine=Machine(cores=1.0)),
    Case("processor", severity="skip"),
    Case("processor", machine=Machine(cores=0.5), severity="fail", remedy="one core"),
    Case("memory", machine=Machine(memory_bytes=2560 * MIB)),
    Case("memory", severity="skip"),
    Case("memory", machine=Machine(memory_bytes=2559 * MIB), severity="warn", remedy="2560 MiB"),
    Case("memory", machine=Machine(memory_bytes=895 * MIB), severity="fail", remedy="2560 MiB"),
    Case("backlog", machine=Machine(backlog=BACKLOG)),
    Case("backlog", severity="skip"),
    Case("backlog", machine=Machine(backlog=128), severity="fail", remedy="net.core.somaxconn"),
)


def of(case: Case, tenants: Path) -> dict[str, ProductionFinding]:
    deployment = Deployment(settings(tenants, **case.settings), case.slots, case.keys, NEEDED, case.machine)
    return {found.check: found for found in findings(deployment)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}-{case.severity}")
def test_a_check_is_green_or_says_what_was_seen_why_it_matters_and_what_to_set(case: Case, tenants: Path) -> None:
    found = of(case, tenants)
    asked = found.pop(case.check)
    assert asked.severity == case.severity
    assert asked.seen
    assert case.remedy in asked.remedy
    assert bool(asked.why) == bool(asked.remedy) == (case.severity in ("warn", "fail"))


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_every_check_has_a_case_of_each_kind(check: str) -> None:
    kinds = {case.severity for case in CASES if case.check == check}
    assert "ok" in kinds
    assert kinds & {"warn", "fail"}


def test_slots_are_those_of_the_list_and_unknown_where_they_are_learned_or_announced(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(
        "workers:\n"
        "  - {name: a, kind: openai, url: 'http://a/v1', slots: 32}\n"
        "  - {name: b, kind: openai, url: 'http://b/v1', slots: auto}\n"
    )
    assert listed_slots(read(file)) == [32, None]
    assert listed_slots(from_urls("http://a:1")) == [None]


# ---- the start


def lines_of(deployment: Deployment) -> list[dict[str, Any]]:
    stream = io.BytesIO()
    log = Log("router", stream=stream)
    warn_of_dangers(deployment, log)
    log.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_the_start_warns_in_one_line_for_each_danger(tenants: Path) -> None:
    bad = settings(
        tenants, max_inflight=1, host="0.0.0.0", default_slo_ms=UNSET, policy="fifo", admin_token=UNSET
    )  # fmt: skip
    lines = lines_of(Deployment(bad, (32,), ["acme"], NEEDED, Machine(1, 0.5, 1, 1)))
    assert {line["level"] for line in lines} == {"WARNING"}
    assert [line["event"].removeprefix("not for production: ") for line in lines] == [
        "in-flight cap", "API keys", "admin", "TLS", "deadlines", "processor", "memory", "backlog",
    ]  # fmt: skip
    assert all(line["seen"] and line["why"] and line["remedy"] for line in lines)


def test_the_start_of_a_sound_router_warns_of_nothing(tenants: Path) -> None:
    machine = Machine(NEEDED, 2, 1 << 40, BACKLOG)
    assert lines_of(Deployment(settings(tenants), (32,), (), NEEDED, machine)) == []


def started(capsys: pytest.CaptureFixture[str], **chosen: Any) -> dict[str, str]:
    """What a router with one worker of 4 slots saw of each danger at its start, by check."""

    async def main() -> None:
        async with standing(FakeWorker(answer, slots=4), log_level="WARNING", **chosen):
            pass

    run(main)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [line for line in lines if line["event"].startswith("not for production: ")]
    return {line["event"].removeprefix("not for production: "): line["seen"] for line in found}


def test_a_router_counts_the_slots_that_its_workers_announce(capsys: pytest.CaptureFixture[str]) -> None:
    assert started(capsys, max_inflight=3)["in-flight cap"] == "MAX_INFLIGHT=3, and the workers have 4 slots"
    assert "in-flight cap" not in started(capsys, max_inflight=4)


def test_a_router_in_a_lab_says_so_and_one_with_keys_does_not(
    tenants: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "lab mode" in started(capsys)
    assert "lab mode" not in started(capsys, tenants_file=tenants)


def test_a_router_names_the_tenants_with_example_keys(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "tenants.example.yaml"
    assert started(capsys, tenants_file=example)["API keys"] == "example keys: demo, acme, nightly"


# ---- what the command line asks


def test_settings_that_cannot_be_used_are_the_one_finding_with_every_fault() -> None:
    def read_settings() -> RouterSettings:
        return RouterSettings(_env_file=None, host="0.0.0.0", max_inflight=0)  # type: ignore[call-arg]

    (found,) = examine(read_settings, Machine())
    assert (found.check, found.severity) == ("settings", "fail")
    assert "MAX_INFLIGHT=0" in found.seen


def test_lab_mode_on_a_public_address_is_a_fault_of_the_settings() -> None:
    def read_settings() -> RouterSettings:
        return RouterSettings(_env_file=None, host="0.0.0.0")  # type: ignore[call-arg]

    (found,) = examine(read_settings, Machine())
    assert re.search("HOST=0.0.0.0 is not loopback.*TENANTS_FILE", found.seen)


def test_the_command_judges_files_and_machine_too(tenants: Path, tmp_path: Path) -> None:
    workers = tmp_path / "workers.yaml"
    workers.write_text("workers: [{name: a, kind: openai, url: 'http://a/v1', slots: 100}]")
    chosen = settings(tenants, workers_file=workers, **NO_LISTENER)
    needed = open_files_needed(chosen, upstream_connections(chosen))
    found = {each.check: each for each in examine(lambda: chosen, Machine(open_files=needed - 1))}
    assert found["in-flight cap"].seen == "MAX_INFLIGHT=64, and the workers have 100 slots"
    assert found["open files"].severity == "fail"
    assert found["API keys"].severity == "ok"


def test_the_command_says_which_tenants_have_example_keys() -> None:
    example = Path(__file__).parents[3] / "tenants.example.yaml"
    chosen = RouterSettings(_env_file=None, tenants_file=example)  # type: ignore[call-arg]
    found = {each.check: each for each in examine(lambda: chosen, Machine())}
    assert found["API keys"].seen == "example keys: demo, acme, nightly"


def test_nothing_of_the_checks_waits_on_a_loop() -> None:
    assert not any(asyncio.iscoroutinefunction(check.look) for check in CHECKS)
