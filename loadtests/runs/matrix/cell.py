"""What is kept of one scenario and one subject: table rows, seconds for the plots, and figures.

Plain data, stored as JSON. Page, pictures and the README's table are made from it alone.
"""

from __future__ import annotations

import msgspec

from loadtests.report.machine import together
from loadtests.runs.matrix.simulated import Simulated
from loadtests.simulator.promises import Values


class TenantRow(msgspec.Struct, frozen=True):
    name: str
    asked_per_s: float
    on_time: float
    """Share of its requests."""
    p95_ms: float
    """Of the admitted, answered or not."""
    answers_p95_ms: float = 0.0
    """Of the answers."""
    tokens: int = 0
    """Of the answers."""


class Row(msgspec.Struct, frozen=True):
    """A table row: one load, counted from the end of its warm-up. Shares are of the distinct requests."""

    name: str
    load: float
    """Times the capacity."""
    asked_per_s: float
    answers_per_s: float
    p50_ms: float
    """Of the admitted: the time until the answer, or until the end without one."""
    p95_ms: float
    p99_ms: float
    deadline_ms: float
    on_time: float
    refused: float
    dropped: float
    """Of the refused: those that were admitted first and rejected at their deadline."""
    failed: float
    exceeded: float
    """Of the failed: those whose deadline passed while a worker ran them."""
    on_time_per_s: float
    goodput: float
    """Tokens of answers on time over the capacity."""
    in_vain: float
    """Share of the workers' tokens that were in no answer on time; over the whole load."""
    refused_p50_ms: float
    refused_p99_ms: float
    hinted: float
    """Share of the useful refusals that have a hint."""
    cut: float
    """Share of the answers that were shorter than requested."""
    answers_p50_ms: float = 0.0
    answers_p95_ms: float = 0.0
    """Of the answers."""
    left: float = 0.0
    """Share of the requests whose clients left without an answer, or whose connection failed."""
    worth_per_s: float = 0.0
    """Answers on time a second, each weighted by its degradation level (`quality` of the scenario's file)."""
    with_passages: float = 0.0
    """Share of the answers on time that had passages."""
    mean_level: float = 0.0
    """Mean degradation level of the answers on time."""
    own_hints: float = 0.0
    """Share of the hints that differ from the most common one: a single time brings all clients back together."""
    fairness: float | None = None
    """Jain's index of the tenants' tokens over their fair shares; None for a single tenant."""
    honest_on_time: float = 0.0
    """Share on time of the clients that are not impatient: those that retry as their tenant usually does."""
    tenants: list[TenantRow] = []


class Second(msgspec.Struct, frozen=True, array_like=True):
    """What ended in one second; `sent` is what was sent in it."""

    sent: int
    on_time: int
    refused: int
    other: int


class Cell(msgspec.Struct, frozen=True):
    scenario: str
    subject: str
    capacity_per_s: float = 0.0
    service_ms: float = 0.0
    rows: list[Row] = []
    seconds: list[Second] = []
    figures: dict[str, float] = {}
    """Of the whole run, by name: see `play`."""
    requests: int = 0
    gateway_ms: float = 0.0
    """Processor time of the gateway for each distinct request."""
    client_late: float = 0.0
    """Share of the requests that the client itself sent late."""
    others: float = 0.0
    """Share of the machine that unrelated programs used."""
    believable: bool = True
    plays: int = 1
    machine: str = ""
    fault: str = ""
    """Why it could not be played."""

    @property
    def key(self) -> str:
        return f"{self.scenario} {self.subject}"


class Series(msgspec.Struct):
    """Everything that was measured. `code`: a digest of the measured code."""

    code: str
    quick: bool = False
    versions: str = ""
    """Versions of the other gateways."""
    given: str = ""
    """The running stack that --url names, and its workers; empty for the embedded one."""
    cells: dict[str, Cell] = {}
    simulated: dict[str, Simulated] = {}
    """By scenario."""
    promised: dict[str, dict[str, Values]] = {}
    """Values for the simulator's promises, by case and policy."""

    @property
    def machines(self) -> str:
        return together(cell.machine for cell in self.cells.values() if cell.machine)

    def of(self, scenario: str) -> Series:
        """What was measured of one scenario."""
        cells = {key: cell for key, cell in self.cells.items() if cell.scenario == scenario}
        simulated = {name: found for name, found in self.simulated.items() if name == scenario}
        return msgspec.structs.replace(self, cells=cells, simulated=simulated, promised={})

    def cell(self, scenario: str, subject: str) -> Cell | None:
        """The result; None if it was not played, or could not be."""
        found = self.cells.get(f"{scenario} {subject}")
        return None if found is None or found.fault else found

    def row(self, scenario: str, subject: str, window: str | None = None) -> Row | None:
        found = self.cell(scenario, subject)
        return None if found is None else next((row for row in found.rows if row.name == (window or scenario)), None)
