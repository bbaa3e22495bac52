"""The doctor's findings, from made-up machines and services."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import httpx2
from rich.console import Console

from services.lab import checks
from services.lab.checks import Finding, Level
from services.lab.doctor import show
from services.lab.ports import Port, free_port


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
    assert checks.python((3, 10, 1)).level is Level.FAIL
    assert checks.python((3, 13, 0)).level is Level.OK


def test_missing_packages_fail_and_different_versions_warn(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("redis==8.1.0\nPyYAML==6.0.3\n")
    pins = checks.read_pins(tmp_path / "constraints.txt")
    assert pins == {"redis": "8.1.0", "pyyaml": "6.0.3"}
    whole = dict.fromkeys(checks.NEEDED, "1.0")
    missing, differing = checks.packages(pins, {name: "1.0" for name in whole if name != "numpy"})
    assert (missing.level, missing.seen) == (Level.FAIL, "missing: numpy")
    assert (differing.level, differing.seen) == (Level.WARN, "redis 1.0 (pinned 8.1.0)")
    assert [found.level for found in checks.packages({"redis": "1.0"}, whole)] == [Level.OK]
    assert [found.level for found in checks.packages({}, whole)] == [Level.SKIP]


def test_a_full_disk_fails_and_a_scarce_one_warns(tmp_path: Path) -> None:
    levels = [checks.folder(tmp_path / "data", free).level for free in (10 << 30, 500 << 20, 10 << 20)]
    assert levels == [Level.OK, Level.WARN, Level.FAIL]


def test_a_taken_port_names_the_setting_that_moves_it() -> None:
    (found,) = checks.ports([Port("router", "ROUTER_PORT", "127.0.0.1", 8000)], 8, stack_runs=False)
    assert found.level is Level.WARN
    assert "ROUTER_PORT" in found.mend


def test_a_platform_without_an_embedded_server_says_what_to_set() -> None:
    (found,) = checks.programs({"PostgreSQL": ("POSTGRES_URL", False), "Valkey": ("REDIS_URL", True)})
    assert (found.what, found.level) == ("PostgreSQL", Level.FAIL)
    assert "POSTGRES_URL" in found.mend


def test_a_service_that_nobody_expects_is_skipped_and_an_expected_one_fails() -> None:
    async def run(expected: bool) -> Finding:
        async with answering(refuses) as client:
            return await checks.service(client, "router", "http://r", expected=expected)

    assert asyncio.run(run(False)).level is Level.SKIP
    assert asyncio.run(run(True)).level is Level.FAIL


def test_a_service_tells_what_it_lacks() -> None:
    def router(client: httpx2.AsyncClient) -> object:
        return checks.service(client, "router", "http://r", expected=True)

    assert look(router, body={"degraded": []}).level is Level.OK
    lacking = look(router, body={"degraded": ["retrieval"]})
    assert lacking.level is Level.WARN
    assert "retrieval" in lacking.seen
    assert look(router, 503, body={"workers": []}).level is Level.FAIL
    assert "something else" in look(router, text="<html>").seen


def test_a_worker_shows_its_slots() -> None:
    told = {"engine": "simulated", "running": 3, "slots": 8, "waiting": 1}
    found = look(lambda client: checks.worker(client, "worker-0", "http://w", expected=True), body=told)
    assert (found.level, found.seen) == (Level.OK, "http://w, simulated, 3 of 8 slots busy, 1 waiting")


def test_a_degraded_answer_warns_and_a_refusal_gives_its_reason() -> None:
    def router(client: httpx2.AsyncClient) -> object:
        return checks.answer(client, "http://r", "demo")

    whole = {"served_ms": 40.2, "source": "tier1", "retrieval_source": "db"}
    assert look(router, body=whole).level is Level.OK
    assert look(router, body={**whole, "source": "degraded", "retrieval_source": "none"}).level is Level.WARN
    full = look(router, 429, body={"error": {"message": "The platform is full."}})
    assert (full.level, full.seen) == (Level.WARN, "refused: The platform is full.")
    assert look(router, 503, body={"error": {"message": "No worker."}}).level is Level.FAIL


def test_old_or_absent_pgvector_is_told() -> None:
    assert checks.pgvector(None).level is Level.FAIL
    assert checks.pgvector({"default_version": "0.6.2", "installed_version": None}).level is Level.WARN
    assert checks.pgvector({"default_version": "0.8.5", "installed_version": "0.8.5"}).level is Level.OK


def test_stores_that_are_not_there_are_findings_and_not_tracebacks() -> None:
    port = free_port()
    (database,) = asyncio.run(checks.database(f"postgresql://weir:x@127.0.0.1:{port}/weir"))
    assert database.level is Level.FAIL
    assert asyncio.run(checks.cache(f"redis://127.0.0.1:{port}/0")).level is Level.WARN


def test_the_table_names_each_finding_and_how_to_mend_it() -> None:
    out = io.StringIO()
    findings = [
        Finding("python", Level.OK, "3.11.7", "not shown when all is well"),
        Finding("router", Level.FAIL, "http://r: not ready", "see its log"),
    ]
    show(findings, Console(file=out, width=100))
    text = out.getvalue()
    assert "ok  python" in text
    assert "→ see its log" in text
    assert "not shown" not in text
    assert "1 to mend." in text
