"""`weir`: the command line. Each command imports what it needs when it is called, so that --help is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from services.lab.config import LabSettings

app = typer.Typer(
    name="weir",
    help="An overload-proof front door for LLM inference, and the lab to watch it in.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

keys = typer.Typer(help="Keys of tenants, for the router's tenants file.", no_args_is_help=True)
app.add_typer(keys, name="keys")
worker = typer.Typer(help="Workers of this machine, without the rest of the stack.", no_args_is_help=True)
app.add_typer(worker, name="worker")
governor = typer.Typer(help="The governor: a hard cap with an honest yield, over TCP.", no_args_is_help=True)
app.add_typer(governor, name="governor")


@app.command()
def up() -> None:
    """Start everything here, from the database to the router and the storm bench. Ctrl-C stops it all."""
    from services.lab.up import up as run

    raise typer.Exit(run(_settings(), _console()))


@app.command()
def down() -> None:
    """Stop the stack that runs in this folder (DATA_DIR)."""
    from services.lab.lease import stop_running

    settings = _settings()
    pid = stop_running(settings.folder, within_s=3 * settings.leave_s + 15)
    _console().print(f"Stopped (pid {pid})." if pid else f"Nothing runs in {settings.folder}.", highlight=False)


@app.command()
def status() -> None:
    """Show what runs in this folder, and whether it is ready."""
    from services.lab.status import status as show

    raise typer.Exit(show(_settings(), _console()))


@app.command()
def doctor() -> None:
    """Check versions, ports, disk, database, cache and services, and say what to mend."""
    from services.lab.doctor import doctor as examine

    raise typer.Exit(examine(_settings(), _console()))


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What to ask of the ingested documents.")],
    tenant: Annotated[str, typer.Option(help="Whose documents.")] = "demo",
    top_k: Annotated[int, typer.Option(min=1, max=20, help="Passages to look up.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=1, max=2048, help="Longest answer, in tokens.")] = 256,
    router: Annotated[str, typer.Option(help="The router's address; default: the one running here.")] = "",
    key: Annotated[str, typer.Option(help="Bearer key, where the router has a tenants file.")] = "",
) -> None:
    """Ask a question; the answer names its sources."""
    from services.lab.ask import Question
    from services.lab.ask import ask as put

    settings = _settings()
    address = router or settings.router_url
    asked = Question(question, tenant=tenant, top_k=top_k, max_tokens=max_tokens, key=key)
    raise typer.Exit(put(asked, address, _console()))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def ingest(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(help="Files or folders, or --reembed; the ingester's options may follow.")
    ],
) -> None:
    """Read documents into the database: chunk, embed, store, forget what has gone."""
    from services.lab.ingest import ingest as run

    run(_settings(), [*paths, *context.args])


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
    from services.lab.simulate.command import Order, show_list
    from services.lab.simulate.command import simulate as run
    from services.lab.simulate.overrides import Changes
    from services.lab.simulate.runs import cores

    if list_them or not scenarios:
        raise typer.Exit(show_list(_console()))
    changes = Changes(
        policies=tuple(policy or ()),
        loads=tuple(load or ()),
        seeds=seeds,
        duration_s=duration,
        trace=trace,
        sets=tuple(change or ()),
    )
    order = Order(tuple(scenarios), changes, jobs=jobs or cores(), out=out, as_json=as_json)
    raise typer.Exit(run(order, _console(), _console(stderr=True)))


@app.command()
def storm(
    scenario: Annotated[str, typer.Argument(help="Which one; see --list.")] = "",
    change: Annotated[list[str] | None, typer.Option("--set", help="A slider: intensity=5.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the run as one HTML file.")] = None,
    beside: Annotated[str, typer.Option(help="Set this run, by its id, beside it in the report.")] = "",
    bench: Annotated[str, typer.Option(help="The storm bench's address; default: the one running here.")] = "",
    list_them: Annotated[bool, typer.Option("--list", help="List the scenarios and their sliders.")] = False,
) -> None:
    """Start real load through the router of the stack that runs here, and watch it. Ctrl-C stops it."""
    from services.lab.internal import token_of
    from services.lab.lease import running_stack
    from services.lab.storm import command

    settings = _settings()
    stack = running_stack(settings.folder)
    address = bench or (stack.storm_url if stack else "") or settings.storm_url
    if list_them or not scenario:
        raise typer.Exit(command.list_scenarios(address, _console(), token_of(settings)))
    wanted = command.Wanted(scenario, command.parse_sets(change or ()), report, beside)
    raise typer.Exit(command.storm(wanted, address, _console(), token_of(settings)))


@keys.command()
def new(tenant: Annotated[str, typer.Option(help="Whose key it is.")] = "") -> None:
    """Make a key: it is shown once, with the line for the tenants file."""
    from services.lab.keys import name_fault
    from services.lab.keys import new as make

    fault = name_fault(tenant) if tenant else None
    if fault is not None:
        raise typer.BadParameter(fault, param_hint="--tenant")
    make(_console(), tenant)


@worker.command(name="run")
def run_workers(
    replicas: Annotated[int | None, typer.Option(min=1, max=64, help="How many; default: WORKERS_COUNT.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=64535, help="Of the first; default: WORKER_PORT.")] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda (worker i on device i), or a list: cuda:0,cuda:2. Default: DEVICE.")
    ] = "",
    name: Annotated[str, typer.Option(help="They are called NAME-0, NAME-1, ...; one NAME a machine.")] = "worker",
) -> None:
    """Start workers on ports that follow each other. Ctrl-C finishes what runs, and stops them."""
    from services.lab.replicas import run

    settings = _settings(workers_count=replicas, worker_port=port, device=device or None)
    raise typer.Exit(run(settings, _console(), prefix=name))


@worker.command(
    name="calibrate",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def calibrate_worker(context: typer.Context) -> None:
    """Measure the engine that the settings name, and fit the simulated engine's clock to it: --help tells how."""
    from services.lab.calibrate import calibrate

    calibrate(_settings(), context.args)


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@governor.command(name="send", context_settings=PASSED_ON)
def send_to_governor(context: typer.Context) -> None:
    """Send a FILE as a job, and come back when told to. Exit status 0 done, 2 aborted, 1 else; --help tells more."""
    from services.lab.governor import send

    send(_settings(), context.args)


@governor.command(name="ping", context_settings=PASSED_ON)
def ping_governor(context: typer.Context) -> None:
    """Ask whether a slot is free. Exit status 0 one is, 2 none is, 1 no answer; --help tells more."""
    from services.lab.governor import send

    send(_settings(), ["--ping", *context.args])


@governor.command(name="run")
def run_governor() -> None:
    """Run a governor alone, settings from the environment. It posts to the router here, if nothing else is set."""
    from services.lab.governor import run

    run(_settings())


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"weir {installed('weir')}, Python {sys.version.split()[0]}")


@app.command(name="clean-data", hidden=True)
def clean_data() -> None:
    """Remove the embedded database, the cache and the logs."""
    from services.lab.lease import clear

    settings = _settings()
    removed = clear(settings.folder)
    _console().print(f"{settings.folder}: removed {', '.join(removed) or 'nothing'}.", highlight=False)


def main() -> None:
    """The console script. A LabError is a sentence, not a traceback."""
    from services.lab.errors import LabError, OutputClosed, complain

    try:
        app()
    except OutputClosed:
        raise SystemExit(1) from None
    except LabError as error:
        complain(_console(stderr=True), error)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _settings(**chosen: object) -> LabSettings:
    """What the environment and .env say, and over it what was chosen on the command line."""
    from services.lab.config import LabSettings
    from services.runtime.settings import load

    return load(LabSettings, **{name: value for name, value in chosen.items() if value is not None})


def _console(*, stderr: bool = False) -> Console:
    from services.lab.console import open_console

    return open_console(stderr=stderr)


if __name__ == "__main__":
    main()
