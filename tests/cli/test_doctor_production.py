"""`weir doctor --production`, and what the doctor says of several routers: what the router's programs answer is shown,
and decides the exit status."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Sequence

import msgspec
import pytest
from rich.console import Console

from services.cli.checks import FindingLevel
from services.cli.config import LabSettings
from services.cli.errors import LabError
from services.cli.production import production
from services.cli.routerprograms import PRODUCTION, SEVERAL, several_routers
from services.contracts.finding import ProductionFinding

OK = ProductionFinding("lab mode", "ok", "TENANTS_FILE=t")
SKIP = ProductionFinding("memory", "skip", "nothing to look at")
WARN = ProductionFinding("TLS", "warn", "HOST=10.0.0.5 without TLS", "keys can be read", "set TLS_CERT_FILE")
FAIL = ProductionFinding("admin", "fail", "no token", "every program may drain workers", "set ADMIN_TOKEN")


def shown(*found: ProductionFinding) -> tuple[int, str]:
    def answers(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        assert tuple(command) == PRODUCTION
        return subprocess.CompletedProcess(command, 0, msgspec.json.encode(found), b"")

    out = io.StringIO()
    status = production(Console(file=out, width=100), answers)
    return status, out.getvalue()


def test_a_danger_is_shown_with_what_was_seen_why_and_what_to_set_and_the_status_is_1() -> None:
    status, text = shown(OK, WARN, FAIL)
    assert status == 1
    for part in ("no token", "every program may drain workers", "→ set ADMIN_TOKEN", "1 to fix."):
        assert part in text


def test_without_a_danger_the_status_is_0() -> None:
    status, text = shown(OK, SKIP, WARN)
    assert status == 0
    assert "→ set TLS_CERT_FILE" in text
    assert "Nothing to fix." in text


def test_a_router_that_is_not_here_is_a_sentence_with_the_end_of_its_errors() -> None:
    def fails(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1, b"", b"Error: No module named services.router\n")

    with pytest.raises(LabError, match="is it installed here") as caught:
        production(Console(file=io.StringIO()), fails)
    assert caught.value.notes == ("Error: No module named services.router",)


@pytest.mark.parametrize("error", [OSError("no memory"), subprocess.TimeoutExpired("python", 60)])
def test_a_router_that_cannot_be_asked_is_a_sentence(error: Exception) -> None:
    def fails(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        raise error

    with pytest.raises(LabError, match="could not be asked"):
        production(Console(file=io.StringIO()), fails)


def lab(**values: object) -> LabSettings:
    return LabSettings(_env_file=None, **values)  # type: ignore[call-arg]


def test_one_of_several_routers_is_judged_by_the_routers_program_too() -> None:
    def answers(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        assert tuple(command) == SEVERAL
        return subprocess.CompletedProcess(command, 0, msgspec.json.encode([WARN]), b"")

    (found,) = several_routers(lab(exchange_url="redis://x"), answers)
    assert (found.what, found.level, found.why) == ("TLS", FindingLevel.WARN, "keys can be read")
    assert several_routers(lab(), answers) == [], "a router that is alone"


def test_a_program_that_cannot_be_asked_about_several_routers_is_a_finding() -> None:
    def fails(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 1, b"", b"Error: no\n")

    (found,) = several_routers(lab(exchange_url="redis://x"), fails)
    assert (found.level, found.remedy) == (FindingLevel.FAIL, "Error: no")
