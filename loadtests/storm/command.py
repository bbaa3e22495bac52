"""`weir storm`: start a run of the bench beside the router, watch it in a terminal and save its report."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import httpx2
import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.storm.report import milliseconds, percent, policy_words
from services.cli.console import open_console, run_command
from services.cli.errors import LabError
from services.cli.internal import shown
from services.contracts.problem import Problem
from services.contracts.storm import Run, Running, Started, StartRun, State

HEADERS = {"x-weir-console": "1", "content-type": "application/json"}
WITHIN_S = 5.0
LOOK_EVERY_S = 0.5


def parse_sets(sets: Sequence[str]) -> dict[str, float]:
    """Parse `intensity=5` and so on. Raises LabError."""
    found = {}
    for assignment in sets:
        name, equals, value = assignment.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise LabError(f"--set {assignment}: write NAME=NUMBER, as in --set intensity=5.")
    return found


class Bench:
    """A client of the bench's process."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        headers = {**HEADERS, **shown(token)}
        self._client = httpx2.Client(base_url=url, timeout=WITHIN_S, trust_env=False, headers=headers)

    def state(self) -> State:
        return msgspec.json.decode(self.call("GET", "/storm"), type=State)

    def call(self, method: str, path: str, **more: Any) -> bytes:
        """The body of an answer. Raises LabError for a refusal or a missing bench."""
        try:
            reply = self._client.request(method, path, **more)
        except httpx2.HTTPError as error:
            raise LabError(f"No storm bench answers at {self._url} ({error}): `weir up` starts one.") from error
        if reply.status_code >= 300:
            raise LabError(f"The storm bench says: {_why(reply.content)}.")
        return reply.content


def _why(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=Problem).error.message
    except msgspec.MsgspecError:
        return "something that is no storm bench's word"


def storm(bench: Bench, request: StartRun, console: Console) -> Run:
    """Run and show a storm to its end or until Ctrl-C. Raises LabError."""
    leaving = Event()
    with _interrupts_to(leaving):
        id = msgspec.json.decode(bench.call("POST", "/storm", content=msgspec.json.encode(request)), type=Started).run
        printed_s = -1
        while not leaving.is_set() and (running := bench.state().running) is not None and running.run == id:
            if int(running.elapsed_s) > printed_s:
                printed_s = int(running.elapsed_s)
                console.print(_line(running), soft_wrap=True)
            leaving.wait(LOOK_EVERY_S)
    if leaving.is_set():
        bench.call("DELETE", "/storm")
    result = msgspec.json.decode(bench.call("GET", "/storm/run", params={"run": id}), type=Run)
    show(result, console)
    return result


@contextmanager
def _interrupts_to(leaving: Event) -> Iterator[None]:
    """Ctrl-C sets the event. As an exception it could strike before the run's id is known, and leave the run going."""
    before = signal.signal(signal.SIGINT, lambda *_: leaving.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _line(running: Running) -> Text:
    return Text.assemble(
        (f"{running.elapsed_s:5.0f} s  ", "dim"),
        f"{running.now or running.phase:<22.22}",
        f"{running.rate_per_s:7.0f}/s sent {running.sent:>7,}  on time {running.on_time:>6,}  refused "
        f"{running.refused:>6,}  late {running.late:>5,}  gone {running.gone:>5,}  95 % {milliseconds(running.p95_ms)}",
    )


def show(run: Run, console: Console) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in (
        ("run", f"{run.run}, {run.ended}{': ' + run.why if run.why else ''}"),
        ("policies", policy_words(run.policy)),
        ("capacity", "unknown" if run.capacity_per_s is None else f"{run.capacity_per_s:g} answers a second"),
        ("sent", f"{run.sent:,}, of which on time {percent(run.on_time_share)}, refused {run.refused:,}"),
        ("late, failed, disconnected", f"{run.late:,}, {run.failed:,}, {run.gone:,}"),
        ("latency", f"p50 {milliseconds(run.p50_ms)}, p95 {milliseconds(run.p95_ms)}"),
        ("on time, share of capacity", percent(run.goodput_share)),
        ("worker time wasted", percent(run.wasted_share)),
    ):
        grid.add_row(Text(name, style="dim"), value)
    console.print(grid)


def list_scenarios(bench: Bench, console: Console) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for scenario in bench.state().scenarios:
        sliders = ", ".join(f"{one.name} {one.min:g}..{one.max:g} ({one.default:g})" for one in scenario.sliders)
        grid.add_row(Text(scenario.name, style="cyan"), f"{scenario.caption}\n{scenario.why_not}".strip())
        grid.add_row("", Text(sliders, style="dim"))
    console.print(grid)


def command(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario; see --list.")] = "",
    change: Annotated[list[str] | None, typer.Option("--set", help="A slider: intensity=5.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the run as one HTML file.")] = None,
    beside: Annotated[str, typer.Option(help="Id of another run to compare in the report.")] = "",
    bench: Annotated[
        str, typer.Option(help="The storm bench's address; `weir storm` names the one running here.")
    ] = "http://127.0.0.1:8090",
    list_them: Annotated[bool, typer.Option("--list", help="List the scenarios and their sliders.")] = False,
) -> None:
    """Start real load through the router of the stack that runs here, and watch it. Ctrl-C stops it."""
    console, at = open_console(), Bench(bench, os.environ.get("INTERNAL_TOKEN", ""))
    if list_them or not scenario:
        list_scenarios(at, console)
        raise typer.Exit(0)
    result = storm(at, StartRun(scenario, parse_sets(change or ())), console)
    if report is not None:
        report.write_bytes(at.call("GET", "/storm/report", params={"run": result.run, "with": beside}))
        console.print(Text(f"Report: {report}", style="dim"))
    raise typer.Exit(0 if result.ended == "done" else 1)


if __name__ == "__main__":
    app = typer.Typer(name="weir storm", add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.command()(command)
    run_command(lambda: app(prog_name="weir storm"))
