"""`weir storm`: a run of the bench that stands beside the router, watched in a terminal, and its report in a file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated, Any, TypeVar

import httpx2
import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.storm.report_words import milliseconds, percent, policy_words
from services.cli.console import open_console, run_command
from services.cli.errors import LabError
from services.cli.internal import shown
from services.contracts.problem import Problem
from services.contracts.storm import Run, Running, Started, State

HEADERS = {"x-weir-console": "1"}
WITHIN_S = 5.0
LOOK_EVERY_S = 0.5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for on the command line."""

    scenario: str
    sliders: Mapping[str, float]
    report: Path | None = None
    beside: str = ""
    """A run to set beside this one in the report."""


def parse_sets(sets: Sequence[str]) -> dict[str, float]:
    """`intensity=5` and so on. Raises LabError."""
    found = {}
    for said in sets:
        name, equals, value = said.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise LabError(f"--set {said}: write NAME=NUMBER, as in --set intensity=5.")
    return found


class Bench:
    """The bench's process, as this command speaks to it."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        headers = {**HEADERS, **shown(token)}
        self._client = httpx2.Client(base_url=url, timeout=WITHIN_S, trust_env=False, headers=headers)

    def state(self) -> State:
        """What goes on there."""
        return msgspec.json.decode(self._call("GET", "/storm"), type=State)

    def start(self, wanted: Wanted) -> str:
        """The id of the run that has begun."""
        body = {"scenario": wanted.scenario, "sliders": dict(wanted.sliders)}
        return msgspec.json.decode(self._call("POST", "/storm", json=body), type=Started).run

    def stop(self) -> None:
        """End what goes on."""
        self._call("DELETE", "/storm")

    def run(self, id: str) -> Run:
        """One that is over."""
        return msgspec.json.decode(self._call("GET", "/storm/run", params={"run": id}), type=Run)

    def report(self, id: str, beside: str) -> bytes:
        """Its page."""
        params = {"run": id, **({"with": beside} if beside else {})}
        return self._call("GET", "/storm/report", params=params)

    def _call(self, method: str, path: str, **more: Any) -> bytes:
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


def storm(wanted: Wanted, url: str, console: Console, token: str = "") -> int:
    """Run it, show it, and save its report. 0 if it ran to its end."""
    bench, leaving = Bench(url, token), Event()
    with _interrupts_to(leaving):
        id = bench.start(wanted)
        for running in _followed(bench, id, leaving):
            console.print(_line(running), soft_wrap=True)
    if leaving.is_set():
        bench.stop()
    told = bench.run(id)
    show(told, console)
    if wanted.report is not None:
        wanted.report.write_bytes(bench.report(id, wanted.beside))
        console.print(Text(f"Report: {wanted.report}", style="dim"))
    return 0 if told.ended == "done" else 1


@contextmanager
def _interrupts_to(leaving: Event) -> Iterator[None]:
    """Ctrl-C sets this: as an exception it could strike before the run's name is known, and leave the run alone."""
    before = signal.signal(signal.SIGINT, lambda *_: leaving.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _followed(bench: Bench, id: str, leaving: Event) -> Iterator[Running]:
    """Its state, about once a second, until it is over or to be left."""
    shown = -1
    while not leaving.is_set() and (running := bench.state().running) is not None and running.run == id:
        if int(running.elapsed_s) > shown:
            shown = int(running.elapsed_s)
            yield running
        leaving.wait(LOOK_EVERY_S)


def _line(running: Running) -> Text:
    return Text.assemble(
        (f"{running.elapsed_s:5.0f} s  ", "dim"),
        f"{running.now or running.phase:<22.22}",
        f"{running.rate_per_s:7.0f}/s sent {running.sent:>7,}  on time {running.on_time:>6,}  refused "
        f"{running.refused:>6,}  late {running.late:>5,}  gone {running.gone:>5,}  95 % {milliseconds(running.p95_ms)}",
    )


def show(run: Run, console: Console) -> None:
    """What it came to."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in (
        ("run", f"{run.run}, {run.ended}{': ' + run.why if run.why else ''}"),
        ("policies", policy_words(run.policy)),
        ("workers can do", "not told" if run.capacity_per_s is None else f"{run.capacity_per_s:g} answers a second"),
        ("sent", f"{run.sent:,}, of which on time {percent(run.on_time_share)}, refused {run.refused:,}"),
        ("late, failed, left", f"{run.late:,}, {run.failed:,}, {run.gone:,}"),
        ("latency", f"half {milliseconds(run.p50_ms)}, 95 % {milliseconds(run.p95_ms)}"),
        ("on time, of what could be", percent(run.goodput_share)),
        ("worker time in vain", percent(run.wasted_share)),
    ):
        grid.add_row(Text(name, style="dim"), value)
    console.print(grid)


def list_scenarios(url: str, console: Console, token: str = "") -> int:
    """What may be run, and what may be set."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for scenario in Bench(url, token).state().scenarios:
        sliders = ", ".join(f"{one.name} {one.min:g}..{one.max:g} ({one.default:g})" for one in scenario.sliders)
        grid.add_row(Text(scenario.name, style="cyan"), f"{scenario.caption}\n{scenario.why_not}".strip())
        grid.add_row("", Text(sliders, style="dim"))
    console.print(grid)
    return 0


def command(
    scenario: Annotated[str, typer.Argument(help="Which one; see --list.")] = "",
    change: Annotated[list[str] | None, typer.Option("--set", help="A slider: intensity=5.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the run as one HTML file.")] = None,
    beside: Annotated[str, typer.Option(help="Set this run, by its id, beside it in the report.")] = "",
    bench: Annotated[
        str, typer.Option(help="The storm bench's address; `weir storm` names the one running here.")
    ] = "http://127.0.0.1:8090",
    list_them: Annotated[bool, typer.Option("--list", help="List the scenarios and their sliders.")] = False,
) -> None:
    """Start real load through the router of the stack that runs here, and watch it. Ctrl-C stops it."""
    console, token = open_console(), os.environ.get("INTERNAL_TOKEN", "")
    if list_them or not scenario:
        raise typer.Exit(list_scenarios(bench, console, token))
    wanted = Wanted(scenario, parse_sets(change or ()), report, beside)
    raise typer.Exit(storm(wanted, bench, console, token))


if __name__ == "__main__":
    app = typer.Typer(name="weir storm", add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    app.command()(command)
    run_command(lambda: app(prog_name="weir storm"))
