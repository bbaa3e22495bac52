"""Series and loads made by hand, for the tests of what is read off them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loadtests.cluster.cpu import Cpu
from loadtests.cluster.meters import Meter
from loadtests.cluster.readings import Used
from loadtests.cluster.stand import Shape, Stand
from loadtests.load.capacity import Capacity
from loadtests.load.figures import Quantiles, figures
from loadtests.load.ledger import Ledger
from loadtests.load.ledger import Row as Asked
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.runs.drill import Drill, Run
from loadtests.runs.matrix.cell import Cell, Row, Second, Series, TenantRow

MACHINE = "2 cores of a test; commit abc, 2026-01-01"
USUAL: dict[str, Any] = {
    "load": 0.75, "asked_per_s": 150.0, "answers_per_s": 150.0, "p50_ms": 90.0, "p95_ms": 120.0, "p99_ms": 130.0,
    "deadline_ms": 1000.0, "on_time": 1.0, "refused": 0.0, "dropped": 0.0, "failed": 0.0, "exceeded": 0.0,
    "on_time_per_s": 150.0, "goodput": 1.0, "in_vain": 0.0, "refused_p50_ms": 1.0, "refused_p99_ms": 5.0,
    "hinted": 1.0, "cut": 0.0, "fairness": 1.0,
}  # fmt: skip
TWO = {
    "noisy_neighbour": ("light", "heavy"),
    "mixed_deadlines": ("tight", "loose"),
    "mixed_sizes": ("small", "big"),
}
FIGURES: dict[str, dict[str, float]] = {
    "burst": {"back_after_s": 0.2},
    "noisy_neighbour": {"solo_p95_ms": 400.0, "beside_p95_ms": 440.0},
    "retry_storm": {"on_time_before": 1.0, "on_time_after": 1.0, "back_after_s": 0.4, "dispatches": 0.9, "tries": 1.5},
    "recovery": {"on_time_before": 1.0, "on_time_after": 1.0, "back_after_s": 0.4},
}


def row(name: str, **more: Any) -> Row:
    tenants = [TenantRow(each, 10.0, 1.0, 100.0) for each in TWO.get(name, ())]
    return Row(**{"name": name, "tenants": tenants, **USUAL, **more})


def cell(scenario: str, policy: str = "weir", rows: Iterable[Row] | None = None, **more: Any) -> Cell:
    """One in which everything is as it should be, but for what is given."""
    usual = [row("burst", load=10.0), row("overload_10x", load=10.0)] if scenario == "burst" else [row(scenario)]
    made: dict[str, Any] = {
        "rows": usual if rows is None else list(rows),
        "capacity_per_s": 200.0,
        "service_ms": 80.0,
        "seconds": [Second(150, 150, 0, 0)] * 8,
        "figures": FIGURES.get(scenario, {}),
        "machine": MACHINE,
    }
    return Cell(scenario, policy, **{**made, **more})


def series(*cells: Cell) -> Series:
    return Series("abc", version="HAProxy version 9", cells={each.key: each for each in cells})


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


def drill(folder: Path, tokens_per_s: float = 8.0) -> Drill:
    """A drill without processes."""
    return Drill(Stand(Shape(), folder), Capacity(tokens_per_s / 8, tokens_per_s, Quantiles()), lambda text: None)
