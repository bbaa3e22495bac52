"""`make simulate-proof`: run every case, judge every line, write docs/results/proof.md and proof.json.

A missed target is a result, not a failure: the exit status is 0 and the table says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadtests.paths import RESULTS
from loadtests.report import machine
from loadtests.simulator.proof import page, timing
from loadtests.simulator.proof.cases import ALL, CASES, LEARNED, MIXES, Case, replays
from loadtests.simulator.proof.execute import batches, execute
from loadtests.simulator.proof.line import Outcome, Row, Runs, outcome
from loadtests.simulator.proof.rows import ROWS, honesty, overload
from loadtests.simulator.runs import cores

SEEDS = 4
WIDE = 170


def proof(
    rows: Annotated[list[int] | None, typer.Argument(help="Which rows; all of them by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many seeds a case is run with.")] = SEEDS,
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy; may be repeated.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="A trace to replay as well; may be repeated.")] = None,
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Processes; 0: one a core.")] = 0,
    write: Annotated[bool, typer.Option(help="Write docs/results/proof.md, if nothing was left out.")] = True,
) -> None:
    """Hold Weir to its promises, beside what others do. A few minutes on two cores."""
    console = _console()
    extra = replays(trace or ())
    chosen = [row for row in _rows(extra) if not rows or row.number in rows]
    cases = {case.name: case for case in (*CASES.values(), *extra)}
    runs = _simulate(
        [cases[name] for row in chosen for name in row.cases], seeds, policy or (), jobs or cores(), console
    )
    found = {row: _judge(row, runs, seeds) for row in chosen}
    for row, outcomes in found.items():
        console.print(page.table(row, outcomes, others=console.width >= WIDE), "")
    on = machine.describe()
    console.print(f"{page.verdict(found)} {on}", highlight=False, soft_wrap=True)
    if write and not rows and not policy:
        _write(found, _command(seeds, trace or ()), on, seeds, console)


def _console() -> Console:
    """As wide as the terminal; wide enough for everything where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


def _rows(extra: Sequence[Case]) -> list[Row]:
    """All rows; with traces, those that hold on every mix hold on them too."""
    names = tuple(case.name for case in extra)
    made = [*ROWS, timing.ROW]
    if names:
        wider = {2: overload.row_2((*MIXES, *names)), 9: honesty.row_9((*LEARNED, *names))}
        made = [wider.get(row.number, row) for row in made]
    return sorted(made, key=lambda row: row.number)


def _simulate(cases: Sequence[Case], seeds: int, policies: Sequence[str], jobs: int, console: Console) -> Runs:
    wanted = batches(dict.fromkeys(cases), _seeds(seeds), policies)
    total = sum(batch.size for batch in wanted)
    count = sum(len(batch.policies) for batch in wanted)
    columns = (
        TextColumn("[cyan]proof"),
        BarColumn(bar_width=32),
        TextColumn("{task.fields[done]}/{task.fields[runs]} runs"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("proof", total=total, done=0, runs=count)
        return execute(wanted, jobs, lambda spent, done: progress.update(task, completed=spent, done=done))


def _judge(row: Row, runs: Runs, seeds: int) -> Sequence[Outcome]:
    if row is timing.ROW:
        return timing.measure()
    return [outcome(line, runs, ALL, _seeds(seeds)) for line in row.lines]


def _seeds(count: int) -> range:
    return range(1, count + 1)


def _command(seeds: int, traces: Sequence[Path]) -> str:
    options = [f"--seeds {seeds}"] if seeds != SEEDS else []
    options += [f"--trace {path.name}" for path in traces]
    return f"make simulate-proof ARGS='{' '.join(options)}'" if options else "make simulate-proof"


def _write(found: page.Proof, command: str, on: str, seeds: int, console: Console) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = page.markdown(found, command, on, seeds)
    (RESULTS / "proof.md").write_text(text, encoding="utf-8")
    told = page.plain(found, command, on, _seeds(seeds))
    (RESULTS / "proof.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    console.print("Written to docs/results/proof.md and proof.json.", highlight=False)


if __name__ == "__main__":
    typer.run(proof)
