"""What is kept of one scenario under one policy: the rows of the table, each second for the plots, and a few figures.

Plain data, written as JSON and read again: page, pictures and the README's table are made of it alone.
"""

from __future__ import annotations

import msgspec

from loadtests.report.machine import together


class TenantRow(msgspec.Struct, frozen=True):
    """How one tenant fared."""

    name: str
    asked_per_s: float
    on_time: float
    """Share of its requests."""
    p95_ms: float


class Row(msgspec.Struct, frozen=True):
    """One line of the table: one load, counted from the end of its warm-up. Shares are of the distinct requests."""

    name: str
    load: float
    """Times the capacity."""
    asked_per_s: float
    answers_per_s: float
    p50_ms: float
    """Of the admitted: the answers, and what was let in and not answered, by when it ended."""
    p95_ms: float
    p99_ms: float
    deadline_ms: float
    on_time: float
    refused: float
    dropped: float
    """Of the refused: those that were let in before, and told at their deadline."""
    failed: float
    exceeded: float
    """Of the failed: those whose deadline passed while a worker worked."""
    on_time_per_s: float
    goodput: float
    """Tokens of answers on time over the capacity."""
    in_vain: float
    """Share of the tokens that workers wrote which were in no answer on time; of the whole load."""
    refused_p50_ms: float
    refused_p99_ms: float
    hinted: float
    """Share of the useful refusals that say when to come back."""
    cut: float
    """Share of the answers that were shorter than asked."""
    fairness: float | None = None
    """Jain's index of what tenants got over their fair shares; None where one tenant asks."""
    tenants: list[TenantRow] = []


class Second(msgspec.Struct, frozen=True, array_like=True):
    """What ended in one second, but for `sent`."""

    sent: int
    on_time: int
    refused: int
    other: int


class Cell(msgspec.Struct, frozen=True):
    """One scenario under one policy."""

    scenario: str
    policy: str
    capacity_per_s: float = 0.0
    service_ms: float = 0.0
    rows: list[Row] = []
    seconds: list[Second] = []
    figures: dict[str, float] = {}
    """What only this scenario measures, by name."""
    requests: int = 0
    gateway_ms: float = 0.0
    """Processor time of the gateway for each distinct request."""
    client_late: float = 0.0
    """Share of the requests that the client itself sent late."""
    others: float = 0.0
    """Share of the machine that other programs used."""
    believable: bool = True
    late_answers: int = 0
    hintless: int = 0
    plays: int = 1
    machine: str = ""
    fault: str = ""
    """Why it could not be played."""

    @property
    def key(self) -> str:
        return f"{self.scenario} {self.policy}"


class Series(msgspec.Struct):
    """Everything that was measured. `subject`: which code it was measured on."""

    subject: str
    quick: bool = False
    version: str = ""
    """HAProxy's."""
    given: str = ""
    """The stack that was given by --url, and its workers; empty for the embedded one."""
    cells: dict[str, Cell] = {}

    @property
    def machines(self) -> str:
        """On what it was measured, in one line."""
        return together(cell.machine for cell in self.cells.values() if cell.machine)

    def cell(self, scenario: str, policy: str) -> Cell | None:
        """None where it was not played, or could not be."""
        found = self.cells.get(f"{scenario} {policy}")
        return None if found is None or found.fault else found

    def row(self, name: str, policy: str) -> Row | None:
        """A line of the table by its own name, whichever scenario measured it."""
        for cell in self.cells.values():
            if cell.policy == policy and not cell.fault:
                for row in cell.rows:
                    if row.name == name:
                        return row
        return None
