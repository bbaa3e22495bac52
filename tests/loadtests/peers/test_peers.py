"""Side by side: what HAProxy is given, what the table shows, and what happens without HAProxy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests.fire.capacity import Capacity
from loadtests.fire.drill import Drill
from loadtests.fire.figure import Figure, at_least
from loadtests.fire.processes import Process
from loadtests.fire.stand import Server, Shape, Stand
from loadtests.openloop.figures import Quantiles
from loadtests.openloop.ledger import Ledger, Refusal
from loadtests.peers import __main__ as command
from loadtests.peers import table
from loadtests.peers.cases import CASES, SHAPE, hinted, leaving
from loadtests.peers.gateways import CONFIG, GATEWAYS, Deadlines, haproxy, settings, the_promise
from loadtests.peers.gateways import in_time_for_the_tightest as tuned
from loadtests.peers.table import Cell

WEIR, PROMISED, TUNED = GATEWAYS


def a_stand(tmp_path: Path) -> Stand:
    workers = [
        Server(Process(f"worker-{n}", [sys.executable], {}, tmp_path), f"http://127.0.0.1:{5000 + n}") for n in (0, 1)
    ]
    return Stand(SHAPE, tmp_path, workers)


def test_every_value_of_the_configuration_is_given(tmp_path: Path) -> None:
    wanted = {part.split("}")[0] for part in CONFIG.read_text().split("${")[1:]}
    given = settings(a_stand(tmp_path), 1, 2, 880.4)
    assert set(given) == wanted
    assert given | {"QUEUE_MS": "880", "SLOTS": "8", "WORKER_0": "5000", "WORKER_1": "5001"} == given


@pytest.mark.skipif(haproxy() is None, reason="haproxy is not installed")
def test_haproxy_itself_accepts_the_configuration(tmp_path: Path) -> None:
    env = settings(a_stand(tmp_path), 5002, 5003, 880)
    checked = subprocess.run(
        [str(haproxy()), "-c", "-f", str(CONFIG)], env=env, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert "warning" not in checked.stderr.lower()


def test_haproxys_wait_is_the_promise_or_what_leaves_time_for_an_answer() -> None:
    deadlines = Deadlines(longest_ms=3000, shortest_ms=300)
    assert the_promise(Shape(), deadlines) == 3000
    assert tuned(Shape(), deadlines) == pytest.approx(180)
    assert tuned(Shape(), Deadlines(100, 50)) >= 1  # 0 would be no limit


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_deadlines_that_haproxy_is_tuned_for_are_those_of_the_load(case: Any, tmp_path: Path) -> None:
    asked: list[float] = []

    class Dry(Drill):
        async def run(self, name: str, *tenants: Any, **more: Any) -> Any:
            asked.extend(tenant.deadline_ms for tenant in tenants)
            assert all(tenant.waits_s * 1000 == tenant.deadline_ms for tenant in tenants)
            assert {tenant.name for tenant in tenants} == set(case.tenants)
            raise KeyError

    made = Dry(a_stand(tmp_path), Capacity(200, 1600, Quantiles()), lambda text: None)
    with pytest.raises(KeyError):
        asyncio.run(case.play(made))
    assert min(asked) == case.deadlines.shortest_ms
    assert max(asked) <= case.deadlines.longest_ms


def test_hints_are_expected_where_coming_back_could_help() -> None:
    class Of:
        ledger = Ledger()

    def refused(code: str, should_retry: bool, hint_ms: float | None) -> None:
        Of.ledger.refusals.append(Refusal("a", 4.0, 0.001, code, should_retry, hint_ms))

    refused("deadline_expired", False, None)
    refused("yield", True, 50.0)
    assert hinted(Of) == 1  # type: ignore[arg-type]
    refused("bare_503", False, None)
    assert hinted(Of) == 0.5  # type: ignore[arg-type]


def test_clients_hang_up_at_their_deadline(tmp_path: Path) -> None:
    made = Drill(a_stand(tmp_path), Capacity(200, 1600, Quantiles()), lambda text: None)
    assert leaving(made, "a", 1, 300).waits_s == 0.3


def test_the_table_has_a_column_for_each_gateway_and_judges_weir() -> None:
    case = CASES[0]
    cells = [
        Cell(case, WEIR, [at_least("goodput", 0.95, 0.97), Figure("p50", 99, "ms")], []),
        Cell(case, PROMISED, [at_least("goodput", 0.28, 0.97), Figure("p50", 778, "ms")], []),
        Cell(case, TUNED, [], [], "haproxy has ended"),
    ]
    rows = list(table.rows(cells))
    assert rows[0] == "| Load | Figure | Weir | HAProxy | HAProxy, tuned | Weir's target | |"
    assert rows[2] == f"| {case.about} | goodput | 0.95 | 0.28 | – | ≥ 0.97 | **missed** |"
    assert rows[3] == "|  | p50 | 99.0 ms | 778 ms | – |  |  |"
    assert "Debian" in table.page(cells, machine="m", version="HAProxy 2.6 of Debian")


def test_without_haproxy_the_command_says_so_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "haproxy", lambda: None)
    monkeypatch.setattr(sys, "argv", ["peers"])
    assert command.main() == 0
    assert capsys.readouterr().out.startswith("Skipped: haproxy is not installed")
