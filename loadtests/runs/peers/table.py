"""The page: a row for each figure, a column for each gateway, and what Weir lost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadtests.report.figure import Figure
from loadtests.runs.peers.cases import CASES, Case
from loadtests.runs.peers.cell import Cell
from loadtests.runs.peers.gateways import GATEWAYS

OURS = "Weir"
CLEARLY = 0.05  # by how much another must be better to be told so
INTRO = """\
# Side by side

Written by `make bench-peers`, on {machine}.

The same workers (two of 8 slots and 80 ms, with 10 % jitter; what would wait behind 8 others they refuse), the same
Poisson arrivals, which do not wait for answers, the same bytes; clients leave at their deadline. Capacity is measured
before each load, at the workers themselves. Those requests count that arrive from second 3 to 3 s before the end, so a
queue that is drained after the load has stopped earns nothing. Goodput is the tokens of answers on time, over the
capacity; with longer answers than those it was measured with it can exceed 1, since a slot loses up to a step between
two answers. Times of answers are of those that came, however few: read them beside the goodput.

Every gateway runs with [its configuration](../../loadtests/runs/peers/configs), which says where it comes from:

{gateways}

All but Weir speak to the workers as to any OpenAI-compatible server: without a deadline. Each request carries its
deadline and its tenant's key, for whoever reads them. Targets are Weir's own. † marks a load in which the client itself
was late: it measured the machine. Versions: {versions}.
"""
LOST = """\

## Where another did better

By more than {clearly}, and in loads that measured the gateway.

| Load | Figure | Weir | better |
|---|---|---:|---|
"""
NONE_LOST = "\nNo other gateway did clearly better in any figure."


def page(cells: Sequence[Cell], *, versions: str) -> str:
    """The whole page."""
    machine = "; ".join(dict.fromkeys(cell.on for cell in cells if cell.on))
    gateways = "\n".join(f"- {gateway.name}: {gateway.about}." for gateway in GATEWAYS if gateway.name in _names(cells))
    intro = INTRO.format(machine=machine, gateways=gateways, versions=versions)
    lost = list(losses(cells))
    told = LOST.format(clearly=f"{CLEARLY * 100:g} %") + "\n".join(lost) if lost else NONE_LOST
    return "\n".join([intro, *rows(cells), told]) + "\n"


def rows(cells: Sequence[Cell]) -> Iterator[str]:
    """The table in Markdown, which is also what the terminal gets."""
    names = _names(cells)
    yield f"| Load | Figure | {' | '.join(names)} | Weir's target | |"
    yield f"|---|---|{'---:|' * len(names)}---:|---|"
    for case in CASES:
        by_name = {cell.gateway: cell for cell in cells if cell.case == case.name}
        if by_name:
            yield from _case(case, by_name, names)


def losses(cells: Sequence[Cell]) -> Iterator[str]:
    """A row for each figure in which others were clearly better than Weir."""
    for case in CASES:
        by_name = {cell.gateway: cell for cell in cells if cell.case == case.name and not cell.doubtful}
        for index, figure in enumerate(by_name[OURS].figures if OURS in by_name else ()):
            others = {name: _figure(cell, index) for name, cell in by_name.items() if name != OURS}
            better = [f"{name} {other.shown}" for name, other in others.items() if other and _beats(other, figure)]
            if better:
                yield f"| {case.about} | {figure.name} | {_told(figure)} | {', '.join(better)} |"


def _beats(other: Figure, ours: Figure) -> bool:
    if other.shown == ours.shown:
        return False
    if math.isnan(ours.value):
        return True
    least = CLEARLY * abs(ours.value)
    return other.value > ours.value + least if ours.at_least else other.value < ours.value - least


def _names(cells: Sequence[Cell]) -> list[str]:
    there = {cell.gateway for cell in cells}
    return [gateway.name for gateway in GATEWAYS if gateway.name in there]


def _case(case: Case, by_name: dict[str, Cell], names: Sequence[str]) -> Iterator[str]:
    most = max((cell.figures for cell in by_name.values()), key=len, default=())
    if not most:
        yield f"| {case.about} | could not be played | {' | '.join('' for _ in names)} | | |"
    for index, figure in enumerate(most):
        shown = [_shown(by_name.get(name), index) for name in names]
        ours = _figure(by_name.get(OURS), index)
        load = case.about if index == 0 else ""
        verdict = "" if ours is None else ours.verdict
        yield f"| {load} | {figure.name} | {' | '.join(shown)} | {figure.wanted} | {verdict} |"


def _figure(cell: Cell | None, index: int) -> Figure | None:
    return cell.figures[index] if cell is not None and index < len(cell.figures) else None


def _shown(cell: Cell | None, index: int) -> str:
    figure = _figure(cell, index)
    if figure is None or cell is None:
        return "–"
    return _told(figure) + (" †" if cell.doubtful else "")


def _told(figure: Figure) -> str:
    return "none" if math.isnan(figure.value) else figure.shown
