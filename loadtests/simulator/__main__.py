"""`weir simulate`, `python -m loadtests.simulator`: compare policies on a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadtests.scenarios.changes import Changes
from loadtests.simulator.command import Order, show_list
from loadtests.simulator.command import simulate as run
from loadtests.simulator.runs import cores
from services.cli.console import open_console, run_command

app = typer.Typer(
    name="weir simulate", add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)  # fmt: skip


@app.command()
def simulate(
    scenarios: Annotated[
        list[str] | None, typer.Argument(help="Scenarios that ship with Weir, by name, or YAML files; see --list.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy; may be repeated.")] = None,
    load: Annotated[
        list[float] | None, typer.Option(min=0.001, max=1000, help="At this multiple of capacity; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=10_000, help="Repeat with so many seeds.")] = None,
    duration: Annotated[float | None, typer.Option(min=0.1, help="Simulated seconds.")] = None,
    trace: Annotated[Path | None, typer.Option(help="The file to replay, for scenarios that replay one.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="weir.key=value, or any other place in the file.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, max=256, help="Processes; default: one a core.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write JSON, PNG and SVG into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the scenarios that ship with Weir.")] = False,
) -> None:
    """Compare policies on a virtual clock: the same traffic, weir beside what others do."""
    if list_them or not scenarios:
        raise typer.Exit(show_list(open_console()))
    changes = Changes(
        policies=tuple(policy or ()),
        loads=tuple(load or ()),
        seeds=seeds,
        duration_s=duration,
        trace=trace,
        sets=tuple(change or ()),
    )
    order = Order(tuple(scenarios), changes, jobs=jobs or cores(), out=out, as_json=as_json)
    raise typer.Exit(run(order, open_console(), open_console(stderr=True)))


if __name__ == "__main__":
    run_command(lambda: app(prog_name="weir simulate"))
