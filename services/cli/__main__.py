"""`weir`: the command line. Each command imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from services.cli.config import LabSettings

app = typer.Typer(
    name="weir",
    help="An overload-proof reverse proxy for LLM servers, and a lab to test it in.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

keys = typer.Typer(help="API keys of tenants, for the router's tenants file.", no_args_is_help=True)
app.add_typer(keys, name="keys")
worker = typer.Typer(help="Workers of this machine, without the rest of the stack.", no_args_is_help=True)
app.add_typer(worker, name="worker")
governor = typer.Typer(help="The governor: a hard concurrency limit, over TCP.", no_args_is_help=True)
app.add_typer(governor, name="governor")


@app.command()
def up() -> None:
    """Start the whole stack, from the database to the router and the storm bench. Ctrl-C stops it."""
    from services.cli.up import up as run

    raise typer.Exit(run(_settings(), _console()))


@app.command()
def down() -> None:
    """Stop the stack that runs in this folder (DATA_DIR)."""
    from services.cli.lease import stop_running

    settings = _settings()
    pid = stop_running(settings.folder, within_s=3 * settings.leave_s + 15)
    _console().print(f"Stopped (pid {pid})." if pid else f"Nothing runs in {settings.folder}.", highlight=False)


@app.command()
def status() -> None:
    """Show what runs in this folder, and whether it is ready."""
    from services.cli.status import status as run

    raise typer.Exit(run(_settings(), _console()))


@app.command()
def doctor(
    production: Annotated[
        bool, typer.Option("--production", help="Only: what is dangerous about this router before a fleet.")
    ] = False,
) -> None:
    """Check versions, ports, disk, database, cache and services, and say what to fix."""
    if production:
        from services.cli.production import production as judge

        raise typer.Exit(judge(_console()))
    from services.cli.doctor import doctor as run

    raise typer.Exit(run(_settings(), _console()))


@app.command(name="compile")
def compile_modules() -> None:
    """Compile the hot path of a request (extra `fast`, and a C compiler)."""
    from services.cli.compile import compile_hot_path

    _console().print(f"Compiled into {compile_hot_path()}", highlight=False)


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question to the ingested documents.")],
    tenant: Annotated[str, typer.Option(help="Tenant that owns the documents.")] = "demo",
    top_k: Annotated[int, typer.Option(min=1, max=20, help="Passages to look up.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=1, max=2048, help="Maximum length of the answer, in tokens.")] = 256,
    router: Annotated[str, typer.Option(help="The router's address; default: the one running here.")] = "",
    key: Annotated[str, typer.Option(help="Bearer key, where the router has a tenants file.")] = "",
) -> None:
    """Ask a question; the answer names its sources."""
    from services.cli.ask import Question
    from services.cli.ask import ask as run

    settings = _settings()
    address = router or settings.router_url
    wanted = Question(question, tenant=tenant, top_k=top_k, max_tokens=max_tokens, key=key)
    raise typer.Exit(run(wanted, address, _console()))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def ingest(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(help="Files or folders, or --reembed; the ingester's options may follow.")
    ],
) -> None:
    """Read documents into the database: chunk, embed, store, and remove what no longer exists."""
    from services.cli.ingest import ingest as run

    run(_settings(), [*paths, *context.args])


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=PASSED_ON)
def simulate(context: typer.Context) -> None:
    """Compare policies on a virtual clock: the same traffic under weir and its alternatives. See --help."""
    from services.cli.testbed import simulate as run

    run(context.args)


@app.command(context_settings=PASSED_ON)
def storm(context: typer.Context) -> None:
    """Start real load through the router of the running stack, and watch it. See --help."""
    from services.cli.testbed import storm as run

    run(_settings(), context.args)


@keys.command()
def new(tenant: Annotated[str, typer.Option(help="Tenant that the key is for.")] = "") -> None:
    """Create a key. It is shown once, with the line for the tenants file."""
    from services.cli.keys import name_fault
    from services.cli.keys import new as make

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
    name: Annotated[
        str, typer.Option(help="Their names are NAME-0, NAME-1, ...; choose another NAME on each machine.")
    ] = "worker",
) -> None:
    """Start workers on consecutive ports. Ctrl-C finishes running requests and stops them."""
    from services.cli.replicas import run

    settings = _settings(workers_count=replicas, worker_port=port, device=device or None)
    raise typer.Exit(run(settings, _console(), prefix=name))


@worker.command(name="calibrate", context_settings=PASSED_ON)
def calibrate_worker(context: typer.Context) -> None:
    """Measure the engine that the settings name, and fit the clock of the simulated engine to it. See --help."""
    from services.cli.calibrate import calibrate

    calibrate(_settings(), context.args)


@governor.command(name="send", context_settings=PASSED_ON)
def send_to_governor(context: typer.Context) -> None:
    """Send a FILE as a job, and retry when asked. Exit status 0: done, 2: aborted, 1: other. See --help."""
    from services.cli.governor import send

    send(_settings(), context.args)


@governor.command(name="ping", context_settings=PASSED_ON)
def ping_governor(context: typer.Context) -> None:
    """Check whether a slot is free. Exit status 0: yes, 2: no, 1: no answer. See --help."""
    from services.cli.governor import send

    send(_settings(), ["--ping", *context.args])


@governor.command(name="run")
def run_governor() -> None:
    """Run a governor alone, with settings from the environment. It posts to the local router by default."""
    from services.cli.governor import run

    run(_settings())


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        found = installed("weir")
    except PackageNotFoundError:
        found = "of this image"
    typer.echo(f"weir {found}, Python {sys.version.split()[0]}")


@app.command(name="clean-data", hidden=True)
def clean_data() -> None:
    """Remove the embedded database, the cache and the logs."""
    from services.cli.lease import clear

    settings = _settings()
    removed = clear(settings.folder)
    _console().print(f"{settings.folder}: removed {', '.join(removed) or 'nothing'}.", highlight=False)


def main() -> None:
    from services.cli.console import run_command

    run_command(partial(app, prog_name="weir"))


def _settings(**chosen: object) -> LabSettings:
    from services.cli.config import LabSettings
    from services.runtime.settings import load

    return load(LabSettings, **{name: value for name, value in chosen.items() if value is not None})


def _console() -> Console:
    from services.cli.console import open_console

    return open_console()


if __name__ == "__main__":
    main()
