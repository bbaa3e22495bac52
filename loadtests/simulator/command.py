"""`weir simulate`: read the scenarios, run them, show the results, and write files with `--out`."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from loadtests.scenarios.changes import Changes, changed, missing_trace
from loadtests.scenarios.model import NAMED, Scenario, find, load_raw, names, parse
from loadtests.scenarios.stages import for_stage
from loadtests.simulator import table
from loadtests.simulator.results import Comparison, compare
from loadtests.simulator.runs import Moved, Run, check, execute, plan, progress_lines
from services.cli.errors import LabError, complain

EXIT_BAD_INPUT = 2
MAX_SCENARIOS = 100
NO_PLOTS = "No plots: they need matplotlib, which comes with the extra `simulate` (make simulate installs it)."


@dataclass(frozen=True, slots=True)
class Order:
    scenarios: tuple[str, ...]
    changes: Changes = field(default_factory=Changes)
    jobs: int = 1
    out: Path | None = None
    as_json: bool = False


def simulate(order: Order, console: Console, aside: Console) -> int:
    """Exit status: 0, or 2 if a scenario cannot be read. Results go to `console`, progress and errors to `aside`.

    Raises LabError for 100 scenarios or more and for a folder that cannot be written.
    """
    if len(order.scenarios) >= MAX_SCENARIOS:
        raise LabError(f"{len(order.scenarios)} scenarios at once are too many.")
    read: dict[str, Scenario] = {}
    status = 0
    for name in order.scenarios:
        try:
            if scenario := _read(name, order.changes, aside):
                read[_unused(Path(name).stem, read)] = scenario
        except LabError as error:
            complain(aside, error)
            status = EXIT_BAD_INPUT
    if status:
        return status
    comparisons = [_show(each, order, console, aside) for each in _compared(read, order.jobs, aside)]
    if order.as_json:
        console.out(json.dumps([each.to_json() for each in comparisons], indent=2), highlight=False)
    return 0


def _unused(name: str, taken: Container[str]) -> str:
    """Two files of one name, from two folders, are two scenarios."""
    names_to_try = (name, *(f"{name}-{number}" for number in range(2, MAX_SCENARIOS)))
    return next(each for each in names_to_try if each not in taken)


def _show(comparison: Comparison, order: Order, console: Console, aside: Console) -> Comparison:
    if not order.as_json:
        console.print(table.page(comparison))
    if order.out:
        for path in keep(comparison, order.out, aside):
            aside.print(Text(f"wrote {path}", style="dim"), soft_wrap=True)
    return comparison


def show_list(console: Console) -> int:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column()
    for name in names():
        grid.add_row(name, str(load_raw(find(name)).get("title", "")))
    console.print(grid)
    return 0


# ---- reading


def _read(name: str, changes: Changes, aside: Console) -> Scenario | None:
    """None, with a message, for a replay whose trace is missing: not an error."""
    path = find(name)
    raw = changed(for_stage(load_raw(path), "simulator", path.stem), changes)
    missing = missing_trace(raw, path.parent)
    if missing is not None and changes.trace is None and path.parent == NAMED:
        text = f"Skipped {path.stem}: it replays {missing}, which does not come with Weir. --trace PATH names the file."
        aside.print(Text(text), soft_wrap=True)
        return None
    scenario = parse(raw, name=path.name, folder=path.parent)
    check(scenario)
    return scenario


# ---- running


def _compared(scenarios: dict[str, Scenario], jobs: int, aside: Console) -> Iterator[Comparison]:
    for name, scenario in scenarios.items():
        runs = plan(scenario)
        with _progress(aside, name, runs) as moved:
            results = execute(runs, jobs, moved)
        yield compare(name, scenario, results)


@contextmanager
def _progress(aside: Console, name: str, runs: Sequence[Run]) -> Iterator[Moved]:
    """A bar on a terminal, log lines elsewhere."""
    if not aside.is_terminal:
        with progress_lines(runs) as moved:
            yield moved
        return
    columns = (
        TextColumn("[cyan]{task.description}"),
        BarColumn(bar_width=32),
        TextColumn("{task.fields[done]}/{task.fields[runs]} runs"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=aside, transient=True) as progress:
        task = progress.add_task(name, total=sum(run.size for run in runs), done=0, runs=len(runs))
        yield lambda size, done: progress.update(task, completed=size, done=done)


# ---- files


def keep(comparison: Comparison, folder: Path, aside: Console) -> Iterator[Path]:
    """Write `NAME.json`, and the plots if matplotlib is installed. Raises LabError if the folder is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{comparison.name}.json"
        path.write_text(json.dumps(comparison.to_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise LabError(f"{folder} cannot be written to: {error.strerror}.") from error
    yield path
    if find_spec("matplotlib") is None:
        aside.print(Text(NO_PLOTS), soft_wrap=True)
        return
    from loadtests.simulator.figures import charts
    from loadtests.simulator.plots import draw

    yield from draw(list(charts(comparison)), folder, comparison.name)
