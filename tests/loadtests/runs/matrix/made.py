"""Series and loads made by hand, for the tests of what is read off them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from loadtests.cluster.cpu import Cpu
from loadtests.cluster.meters import Meter
from loadtests.cluster.processes import Process
from loadtests.cluster.readings import Used
from loadtests.cluster.stand import Server, Shape, Stand
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles, figures
from loadtests.load.ledger import Ledger
from loadtests.load.ledger import Row as Asked
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.runs.matrix import cases as module
from loadtests.runs.matrix.cases import SERIES, Case
from loadtests.runs.matrix.cell import Cell, Row, Second, Series, TenantRow
from loadtests.runs.matrix.setup import Run, Setup
from loadtests.runs.matrix.staging import troubles

MACHINE = "2 cores of a test; commit abc, 2026-01-01"
USUAL: dict[str, Any] = {
    "load": 0.75, "asked_per_s": 150.0, "answers_per_s": 150.0, "p50_ms": 90.0, "p95_ms": 120.0, "p99_ms": 130.0,
    "deadline_ms": 1000.0, "on_time": 1.0, "refused": 0.0, "dropped": 0.0, "failed": 0.0, "exceeded": 0.0,
    "on_time_per_s": 150.0, "goodput": 1.0, "in_vain": 0.0, "refused_p50_ms": 1.0, "refused_p99_ms": 5.0,
    "hinted": 1.0, "cut": 0.0, "fairness": 1.0, "answers_p50_ms": 90.0, "answers_p95_ms": 120.0,
}  # fmt: skip
PACK = {"failed_tries": 0.0, "late_answers": 0.0, "hintless": 0.0, "wasted": 0.0, "miscounted": 0.0, "dispatches": 1.0,
        "attempts": 1.0}  # fmt: skip
TROUBLED = {"on_time_before": 1.0, "on_time_during": 0.5, "on_time_after": 1.0, "after_over_before": 1.0,
            "back_after_s": 0.4}  # fmt: skip


@cache
def case(name: str) -> Case:
    """Read once: a file does not change during the tests."""
    return module.case(name)


def cases() -> dict[str, Case]:
    return {name: case(name) for name in SERIES}


def row(name: str, tenants: Iterable[str] = (), **more: Any) -> Row:
    own = [TenantRow(each, 10.0, 1.0, 110.0, 100.0) for each in tenants]
    return Row(**{"name": name, "tenants": own, **USUAL, **more})


def cell(scenario: str, subject: str = "weir", rows: Iterable[Row] | None = None, **more: Any) -> Cell:
    """One in which everything is as it should be, but for what is given."""
    played = case(scenario)
    names = [scenario, *(window.name for window in played.scenario.windows)]
    figures = PACK | (TROUBLED if troubles(played.scenario) else {})
    figures |= {f"{who}_alone_p95_ms": 95.0 for who in played.scenario.alone}
    usual = {"worth_per_s": 100.0 if subject == "no_degradation" else 150.0, "with_passages": 1.0}
    made: dict[str, Any] = {
        "rows": [row(name, played.tenants, **usual) for name in names] if rows is None else list(rows),
        "capacity_per_s": 200.0,
        "service_ms": 80.0,
        "seconds": [Second(150, 150, 0, 0)] * 8,
        "machine": MACHINE,
    }
    return Cell(scenario, subject, **{**made, **more, "figures": figures | more.get("figures", {})})


def a_stand(folder: Path) -> Stand:
    """Two workers that have not been started."""
    workers = [
        Server(Process(f"worker-{n}", [sys.executable], {}, folder), f"http://127.0.0.1:{5000 + n}") for n in (0, 1)
    ]
    return Stand(Shape(), folder, workers)


def series(*cells: Cell) -> Series:
    return Series("abc", versions="HAProxy version 9", cells={each.key: each for each in cells})


def asked(number: int, ending: str, *, at_s: float = 5.0, took_s: float = 0.1, tenant: str = "a") -> Asked:
    """One request and how it ended."""
    made = Asked(number, tenant, at_s, 1000.0)
    made.sent_s = made.last_sent_s = at_s
    made.end_s = at_s + took_s
    made.asked_tokens, made.attempts, made.ending = 8, 1, ending
    made.tokens = 8 if ending.startswith("served") else 0
    return made


def load(*rows: Asked, tokens_written: float = 0.0, tenants: tuple[str, ...] = ("a",)) -> Run:
    """A load of ten seconds that ended so."""
    plan = Plan(10.0, tuple(Tenant(name, (Step(0, 1),)) for name in tenants))
    ledger = Ledger()
    ledger.rows = list(rows)
    used = Used(Meter(tokens=tokens_written), Cpu(10.0), {})
    return Run("made", plan, ledger, figures(plan, ledger), used)


def setup(folder: Path, tokens_per_s: float = 8.0) -> Setup:
    """A setup without processes."""
    return Setup(Stand(Shape(), folder), Capacity(tokens_per_s / 8, tokens_per_s, Quantiles()), lambda text: None)
