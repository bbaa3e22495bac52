"""What Weir is to show, as figures with targets: each is read off the series and held or missed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.matrix.cell import Cell, Row, Series
from loadtests.runs.matrix.plays import DEADLINE_MS, LIGHT
from loadtests.runs.matrix.policies import WEIR
from loadtests.runs.matrix.scenarios import SCENARIOS, Scenario

OVERLOADS = {"overload_2x": "2x", "overload_5x": "5x", "overload_10x": "10x"}
MOST_WAIT_P50, MOST_WAIT_P95 = 2.0, 4.0


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise and the figures that test it."""

    name: str
    figures: tuple[Figure, ...]


def promises(series: Series) -> list[Promise]:
    """Those of which something was measured."""
    made = (
        Promise("Overload: the work is done for somebody", tuple(_overload(series))),
        Promise("Admitted means served", tuple(_served(series))),
        Promise("Work in vain", tuple(_in_vain(series))),
        Promise("A tenant beside another at fifty times the capacity", tuple(_neighbour(series))),
        Promise("A burst of ten times the capacity for twenty seconds", tuple(_burst(series))),
        Promise("A retry storm: twenty seconds of outage", tuple(_retry_storm(series))),
    )
    return [promise for promise in made if promise.figures]


def summary(series: Series) -> str:
    """How many targets held."""
    held = [figure.held for promise in promises(series) for figure in promise.figures if figure.held is not None]
    return f"{sum(held)} of {len(held)} targets held."


def _overload(series: Series) -> Iterator[Figure]:
    for name, load in OVERLOADS.items():
        found = _measured(series, name)
        if found is None:
            continue
        cell, row = found
        service_ms = max(cell.service_ms, 1e-9)
        yield at_least(f"goodput / capacity at {load}", row.goodput, 0.97)
        for quantile, value_ms, most in (("p50", row.p50_ms, MOST_WAIT_P50), ("p95", row.p95_ms, MOST_WAIT_P95)):
            waited = max(0.0, value_ms - service_ms) / service_ms
            yield at_most(f"wait of the admitted at {load}, {quantile}", waited, most, "service times")


def _served(series: Series) -> Iterator[Figure]:
    cells = _unhurt(series)
    if not cells:
        return
    rows = [row for _, cell in cells for row in cell.rows]
    yield at_most("answers sent after their deadline", sum(cell.late_answers for _, cell in cells), 0)
    exceeded = max(row.exceeded / _admitted(row) for row in rows)
    dropped = max(row.dropped / _admitted(row) for row in rows)
    yield at_most("let in, and missed after using a worker, at worst", exceeded, 0.01, "%")
    yield at_most("let in, and told at the deadline that it is late, at worst", dropped, 0.05, "%")
    yield at_most("failure rate at worst", max(row.failed for row in rows), 0, "%", _worst_place(series))


def _worst_place(series: Series) -> str:
    name, cell = max(_unhurt(series), key=lambda each: max(row.failed for row in each[1].rows))
    return name.title if max(row.failed for row in cell.rows) else ""


def _admitted(row: Row) -> float:
    """Share of the requests that were let in."""
    return max(1e-9, 1 - row.refused + row.dropped)


def _in_vain(series: Series) -> Iterator[Figure]:
    for name, load in OVERLOADS.items():
        if found := _measured(series, name):
            yield at_most(f"tokens written that were in no answer on time, {load}", found[1].in_vain, 0.01, "%")


def _neighbour(series: Series) -> Iterator[Figure]:
    cell = series.cell("noisy_neighbour", WEIR.name)
    if cell is None:
        return
    light = next(tenant for tenant in cell.rows[0].tenants if tenant.name == "light")
    solo_ms, beside_ms = cell.figures["solo_p95_ms"], cell.figures["beside_p95_ms"]
    yield at_least(f"answered on time, of a tenant at {LIGHT:g} of the capacity", light.on_time, 0.99, "%")
    yield at_most("its p95 beside the other / alone", beside_ms / max(solo_ms, 1e-9), 1.3, "",
                  f"{beside_ms:.0f} ms against {solo_ms:.0f} ms")  # fmt: skip


def _burst(series: Series) -> Iterator[Figure]:
    found = _measured(series, "overload_10x")
    if found is None:
        return
    cell, during = found
    yield at_most("p95 of the admitted during the burst", during.p95_ms, DEADLINE_MS, "ms", "the deadline")
    if baseline := _measured(series, "baseline"):
        usual_ms = baseline[1].p95_ms
        yield at_most("the same / the baseline's", during.p95_ms / max(usual_ms, 1e-9), 1.5, "",
                      f"{during.p95_ms:.0f} ms against {usual_ms:.0f} ms")  # fmt: skip
    yield at_most(
        "nine tenths of the share on time are back after", cell.figures["back_after_s"], DEADLINE_MS / 1000, "s"
    )
    yield at_most("failure rate", max(row.failed for row in cell.rows), 0, "%")


def _retry_storm(series: Series) -> Iterator[Figure]:
    cell = series.cell("retry_storm", WEIR.name)
    if cell is None:
        return
    before, after = cell.figures["on_time_before"], cell.figures["on_time_after"]
    yield at_least("on time afterwards / before", after / max(before, 1e-9), 0.97, "", "from 3 s after the outage")
    yield at_most("requests to workers, for each of a client's", cell.figures["dispatches"], 1.1)


def _measured(series: Series, row_name: str) -> tuple[Cell, Row] | None:
    """Weir's row of this name, and the cell that it belongs to."""
    for cell in series.cells.values():
        if cell.policy == WEIR.name and not cell.fault:
            for row in cell.rows:
                if row.name == row_name:
                    return cell, row
    return None


def _unhurt(series: Series) -> list[tuple[Scenario, Cell]]:
    """Weir's, where no worker was hurt on purpose."""
    wanted = ((scenario, series.cell(scenario.name, WEIR.name)) for scenario in SCENARIOS if not scenario.hurts)
    return [(scenario, cell) for scenario, cell in wanted if cell is not None and cell.rows]
