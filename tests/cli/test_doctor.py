"""The doctor's findings, from made-up machines and services."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich.console import Console

from services.cli import checks, devices
from services.cli.checks import Finding, FindingLevel, Usual
from services.cli.config import LabSettings
from services.cli.databasecheck import database, pgvector
from services.cli.doctor import engine, show
from services.cli.ports import Port, free_port


def answering(handler: Callable[[httpx2.Request], httpx2.Response]) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.MockTransport(handler))


def look(
    check: Callable[[httpx2.AsyncClient], object], status: int = 200, body: object = None, text: str = ""
) -> Finding:
    reply = httpx2.Response(status, text=text) if text else httpx2.Response(status, json=body)

    async def run() -> Finding:
        async with answering(lambda _: reply) as client:
            finding = await check(client)  # type: ignore[misc]
            assert isinstance(finding, Finding)
            return finding

    return asyncio.run(run())


def refuses(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("refused")


def test_an_old_python_fails_and_a_new_one_does_not() -> None:
    assert checks.python((3, 10, 1)).level is FindingLevel.FAIL
    assert checks.python((3, 13, 0)).level is FindingLevel.OK


def test_missing_packages_fail_and_different_versions_warn(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("redis==8.1.0\nPyYAML==6.0.3\n")
    pins = checks.read_pins(tmp_path / "constraints.txt")
    assert pins == {"redis": "8.1.0", "pyyaml": "6.0.3"}
    whole = dict.fromkeys(checks.NEEDED, "1.0")
    missing, differing = checks.packages(pins, {name: "1.0" for name in whole if name != "numpy"})
    assert (missing.level, missing.seen) == (FindingLevel.FAIL, "missing: numpy")
    assert (differing.level, differing.seen) == (FindingLevel.WARN, "redis 1.0 (pinned 8.1.0)")
    assert [found.level for found in checks.packages({"redis": "1.0"}, whole)] == [FindingLevel.OK]
    assert [found.level for found in checks.packages({}, whole)] == [FindingLevel.SKIP]


def test_a_full_disk_fails_and_a_scarce_one_warns(tmp_path: Path) -> None:
    levels = [checks.folder(tmp_path / "data", free).level for free in (10 << 30, 500 << 20, 10 << 20)]
    assert levels == [FindingLevel.OK, FindingLevel.WARN, FindingLevel.FAIL]


def test_a_taken_port_names_the_setting_that_moves_it() -> None:
    (found,) = checks.ports([Port("router", "ROUTER_PORT", "127.0.0.1", 8000)], 8, stack_runs=False)
    assert found.level is FindingLevel.WARN
    assert "ROUTER_PORT" in found.remedy


def test_a_platform_without_an_embedded_server_says_what_to_set() -> None:
    (found,) = checks.programs({"PostgreSQL": ("POSTGRES_URL", False), "Valkey": ("REDIS_URL", True)})
    assert (found.what, found.level) == ("PostgreSQL", FindingLevel.FAIL)
    assert "POSTGRES_URL" in found.remedy


def test_a_service_that_nobody_expects_is_skipped_and_an_expected_one_fails() -> None:
    async def run(expected: bool) -> Finding:
        async with answering(refuses) as client:
            return await checks.service(client, "router", "http://r", expected=expected)

    assert asyncio.run(run(False)).level is FindingLevel.SKIP
    assert asyncio.run(run(True)).level is FindingLevel.FAIL


def test_a_service_tells_what_it_lacks() -> None:
    def router(client: httpx2.AsyncClient) -> object:
        return checks.service(client, "router", "http://r", expected=True)

    assert look(router, body={"degraded": []}).level is FindingLevel.OK
    lacking = look(router, body={"degraded": ["retrieval"]})
    assert lacking.level is FindingLevel.WARN
    assert "retrieval" in lacking.seen
    assert look(router, 503, body={"workers": []}).level is FindingLevel.FAIL
    assert "another program answers" in look(router, text="<html>").seen


def shown(**printed: object) -> Finding:
    usual = Usual(tokens=256, within_s=24.0)
    body = {"engine": "simulated", "running": 3, "slots": 8, "waiting": 1, **printed}
    return look(lambda client: checks.worker(client, "worker-0", "http://w", usual, expected=True), body=body)


def test_a_worker_shows_its_slots() -> None:
    found = shown()
    assert (found.level, found.seen) == (FindingLevel.OK, "http://w, simulated, 3 of 8 slots busy, 1 waiting")


def test_a_model_too_slow_for_the_default_deadline_is_told_with_what_to_change() -> None:
    assert shown(step_ms=93.0).level is FindingLevel.OK
    slow = shown(step_ms=200.0)
    assert slow.level is FindingLevel.WARN
    assert "an answer of 256 tokens takes 51 s, and 24 s are planned for it" in slow.seen
    assert "DEFAULT_SLO_MS" in slow.remedy
    assert "DEFAULT_MAX_TOKENS" in slow.remedy


def test_a_build_of_the_pinned_version_is_that_version() -> None:
    whole = dict.fromkeys(checks.NEEDED, "1.0")
    (same,) = checks.packages({"torch": "2.13.0"}, {**whole, "torch": "2.13.0+cpu"})
    assert same.level is FindingLevel.OK
    (other,) = checks.packages({"torch": "2.13.0"}, {**whole, "torch": "2.12.1+cpu"})
    assert (other.level, "torch 2.12.1+cpu" in other.seen) == (FindingLevel.WARN, True)


def test_a_real_model_needs_its_packages_and_the_device_it_was_promised() -> None:
    versions = ["torch 2.13.0"]
    (absent,) = checks.engine(["torch"], [], [], "auto")
    assert (absent.level, absent.remedy) == (FindingLevel.FAIL, "`make torch`")
    packages, device = checks.engine([], versions, [], "auto")
    assert (packages.level, device.level) == (FindingLevel.OK, FindingLevel.OK)
    assert "processor" in device.seen
    assert checks.engine([], versions, [], "cuda:0")[1].level is FindingLevel.FAIL
    assert checks.engine([], versions, ["H200 (139 GiB)"], "cuda")[1].seen == "cuda:0 H200 (139 GiB)"


def test_the_engine_is_only_examined_where_a_model_is_loaded_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(**values: Any) -> LabSettings:
        return LabSettings(_env_file=None, data_dir=tmp_path, **values)  # type: ignore[call-arg]

    monkeypatch.setattr(devices, "installed", lambda name: None)
    assert engine(chosen()) == []
    assert engine(chosen(engine="torch", workers="http://w")) == []
    assert [found.level for found in engine(chosen(engine="torch"))] == [FindingLevel.FAIL]
    (named,) = engine(chosen(engine="torch", device="gpu"))
    assert "'gpu'" in named.remedy


def test_a_degraded_answer_warns_and_a_refusal_gives_its_reason() -> None:
    def router(client: httpx2.AsyncClient) -> object:
        return checks.answer(client, "http://r", "demo")

    whole = {"served_ms": 40.2, "source": "tier1", "retrieval_source": "db"}
    assert look(router, body=whole).level is FindingLevel.OK
    assert look(router, body={**whole, "source": "degraded", "retrieval_source": "none"}).level is FindingLevel.WARN
    full = look(router, 429, body={"error": {"message": "The platform is full."}})
    assert (full.level, full.seen) == (FindingLevel.WARN, "rejected: The platform is full.")
    assert look(router, 503, body={"error": {"message": "No worker."}}).level is FindingLevel.FAIL


def test_old_or_absent_pgvector_is_told() -> None:
    assert pgvector(None).level is FindingLevel.FAIL
    assert pgvector({"default_version": "0.6.2", "installed_version": None}).level is FindingLevel.WARN
    assert pgvector({"default_version": "0.8.5", "installed_version": "0.8.5"}).level is FindingLevel.OK


@pytest.mark.sockets
def test_stores_that_are_not_there_are_findings_and_not_tracebacks() -> None:
    port = free_port()
    (found,) = asyncio.run(database(f"postgresql://weir:x@127.0.0.1:{port}/weir"))
    assert found.level is FindingLevel.FAIL
    assert asyncio.run(checks.cache(f"redis://127.0.0.1:{port}/0")).level is FindingLevel.WARN


def test_the_table_names_each_finding_and_how_to_mend_it() -> None:
    out = io.StringIO()
    findings = [
        Finding("python", FindingLevel.OK, "3.11.7", "not shown when all is well"),
        Finding("router", FindingLevel.FAIL, "http://r: not ready", "see its log"),
    ]
    show(findings, Console(file=out, width=100))
    text = out.getvalue()
    assert "ok  python" in text
    assert "→ see its log" in text
    assert "not shown" not in text
    assert "1 to fix." in text
