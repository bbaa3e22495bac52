"""The table: a row for each figure, a column for each gateway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.fire.drill import Run
from loadtests.fire.figure import Figure
from loadtests.peers.cases import Case
from loadtests.peers.gateways import CONFIG, GATEWAYS, Gateway

INTRO = """\
# Side by side

Written by `make bench-peers`, on {machine}; {version}.

The same workers (two of 8 slots and 80 ms, with 10 % jitter), the same Poisson arrivals, which do not wait for answers;
clients leave at their deadline. Capacity is measured before each load, at the workers themselves. Those requests count
that arrive from second 3 to 3 s before the end, so a queue that is drained after the load has stopped earns nothing.
Goodput is the tokens of answers on time, over the capacity; with longer answers than those it was measured with it can
exceed 1, since a slot loses up to a step between two answers.

HAProxy runs as [{config}](../../loadtests/peers/{config}) has it: `maxconn` is a worker's slots, the rest waits in the
backend's queue, and `abortonclose` takes out who has left. It has one `timeout queue` for all, so it is shown twice:
with the longest deadline that the service promises, and tuned by somebody who knows the service time and every
deadline, to the shortest deadline less one and a half service times. Weir runs with its default settings; it is told
each request's deadline, and whose it is by its key. Targets are Weir's own. A load in which the client itself was late
is marked †: it measured the machine.
"""


@dataclass(frozen=True)
class Cell:
    """One case through one gateway."""

    case: Case
    gateway: Gateway
    figures: Sequence[Figure]
    runs: Sequence[Run]
    fault: str = ""

    @property
    def doubtful(self) -> bool:
        return any(not run.figures.valid for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "gateway": self.gateway.name,
            "figures": [figure.as_dict() for figure in self.figures],
            "runs": [run.as_dict() for run in self.runs],
            "fault": self.fault,
        }


def page(cells: Sequence[Cell], *, machine: str, version: str) -> str:
    """The whole page."""
    intro = INTRO.format(machine=machine, version=version, config=CONFIG.name)
    return "\n".join([intro, *rows(cells)]) + "\n"


def rows(cells: Sequence[Cell]) -> Iterator[str]:
    """The table in Markdown, which is also what the terminal gets."""
    names = [gateway.name for gateway in GATEWAYS]
    yield f"| Load | Figure | {' | '.join(names)} | Weir's target | |"
    yield f"|---|---|{'---:|' * len(names)}---:|---|"
    for case in dict.fromkeys(cell.case for cell in cells):
        yield from _case(case, {cell.gateway.name: cell for cell in cells if cell.case is case}, names)


def _case(case: Case, by_name: dict[str, Cell], names: Sequence[str]) -> Iterator[str]:
    most = max((cell.figures for cell in by_name.values()), key=len, default=())
    if not most:
        yield f"| {case.about} | could not be played | {' | '.join('' for _ in names)} | | |"
    for index, figure in enumerate(most):
        shown = [_shown(by_name.get(name), index) for name in names]
        ours = _figure(by_name.get("Weir"), index)
        load = case.about if index == 0 else ""
        verdict = "" if ours is None else ours.verdict
        yield f"| {load} | {figure.name} | {' | '.join(shown)} | {figure.wanted} | {verdict} |"


def _figure(cell: Cell | None, index: int) -> Figure | None:
    return cell.figures[index] if cell is not None and index < len(cell.figures) else None


def _shown(cell: Cell | None, index: int) -> str:
    figure = _figure(cell, index)
    if figure is None or cell is None:
        return "–"
    return figure.shown + (" †" if cell.doubtful else "")
