"""How Locust plays a scenario: chosen and validated when a run begins, summarised at its end.

Locust finds one user class and one shape in its locustfile; when a run begins, a class per group replaces that user.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from locust import events

from loadtests.scenarios.people import Scenario, load, names
from loadtests.target import BEYOND
from loadtests.users.access import Access, access
from loadtests.users.run import Run
from loadtests.users.shapes import Places, Stages
from loadtests.users.summary import onto_page, text, write
from loadtests.users.trouble import NoFaults, Trouble, urls_of
from loadtests.users.visitor import GRACE_S, Visitor, of_group

DEFAULT_HOST = "http://127.0.0.1:8000"
NOT_MADE = 2  # exit status: the scenario could not be played
FAILED = 1


class PlaceholderVisitor(Visitor):
    """A placeholder: each scenario brings its own classes."""


class Scenarios(Stages):
    """The scenario is read when a run begins: Locust's page may choose another one each time."""

    def __init__(self) -> None:
        super().__init__(lambda: begin(self.runner.environment) if self.runner else None)


@events.init_command_line_parser.add_listener
def options(parser: Any) -> None:
    """Add our five options; Locust's page shows the first two."""
    parser.add_argument(
        "--scenario", choices=names(), default="baseline", env_var="SCENARIO",
        help="What to play: a file in loadtests/scenarios",
    )  # fmt: skip
    parser.add_argument(
        "--share", type=float, default=1.0,
        help="Shorten every stage to this share of its time, but not below three seconds: for a quick check",
    )  # fmt: skip
    parser.add_argument(
        "--out", default="", env_var="LOAD_OUT", include_in_web_ui=False,
        help="Folder for summary.txt and summary.json",
    )  # fmt: skip
    parser.add_argument(
        "--keys", default="", env_var="LOAD_KEYS", include_in_web_ui=False,
        help="A file with a line `tenant: key` for each tenant, if the router has a tenants file",
    )  # fmt: skip
    parser.add_argument(
        BEYOND, dest="beyond", action="store_true", default=False, include_in_web_ui=False,
        help="Load another machine than this one, if --host names one",
    )  # fmt: skip


@events.init.add_listener
def prepare(environment: Any, **_: Any) -> None:
    environment.host = environment.host or DEFAULT_HOST
    environment.dispatcher_class = Places
    environment.run_data = None
    environment.access = access(environment.parsed_options.beyond, environment.parsed_options.keys)
    if environment.web_ui is None:  # a headless run with a shape ignores SIGTERM: end it with the summary
        gevent.signal_handler(signal.SIGTERM, environment.runner.quit)
    else:
        environment.web_ui.app.add_url_rule("/summary", view_func=lambda: _summary_page(environment))


def begin(environment: Any) -> Run | None:
    """Start a run with an empty ledger. None, with a logged reason, if it cannot be played."""
    log = logging.getLogger("loadtests")  # appears on Locust's page too
    if why := environment.access.refusal(environment.host) or _unplayable(environment):
        log.error(why)
        return None
    if warning := environment.access.warning(environment.host):
        log.warning(warning)
    scenario = _chosen(environment)
    environment.profile = scenario.name
    environment.user_classes = [of_group(group) for group in scenario.groups]
    environment.stop_timeout = scenario.longest_wait_s + GRACE_S  # requests under way may finish
    urls = urls_of(os.environ, environment.host) if scenario.breaks_something else []
    run = environment.run_data = Run(scenario, Trouble(urls))
    run.lateness.start()
    print(f"\n{scenario.name}, {scenario.seconds:g} s: {scenario.asks}\n{scenario.caption}", flush=True)
    return run


def _chosen(environment: Any) -> Scenario:
    return load(environment.parsed_options.scenario).shortened(float(environment.parsed_options.share))


def _unplayable(environment: Any) -> str:
    """Why the chosen scenario cannot be played here; empty if it can."""
    try:
        scenario = _chosen(environment)
        allowed: Access = environment.access
        if why := allowed.refusal(environment.host, [group.name for group in scenario.groups]):
            return why
        if scenario.breaks_something:
            Trouble(urls_of(os.environ, environment.host)).check()
    except NoFaults as error:
        return (
            f"{environment.parsed_options.scenario} slows simulated workers, and here it cannot: {error}. "
            "loadtests/README.md says where it can."
        )
    except ValueError as error:
        return str(error)
    return ""


@events.test_stop.add_listener
def summarise(environment: Any, **_: Any) -> None:
    """Print how the requests ended, and write the files that were requested."""
    run: Run | None = environment.run_data
    if run is None or run.ended:
        return
    run.finish()
    print(f"\n{text(run)}\n", flush=True)
    if environment.parsed_options.out:
        write(run, environment.host, Path(environment.parsed_options.out))


def _summary_page(environment: Any) -> tuple[str, dict[str, str]]:
    run: Run | None = environment.run_data
    page = text(run) if run is not None else "No scenario has been played yet."
    return page + "\n", {"content-type": "text/plain; charset=utf-8"}


@events.quitting.add_listener
def leave(environment: Any, **_: Any) -> None:
    """Set the exit status from the users' results, and add the summary to Locust's report."""
    run: Run | None = environment.run_data
    if run is None:
        environment.process_exit_code = NOT_MADE if environment.web_ui is None else 0
        return
    if run.ledger.count("failed") or not run.ledger.total:
        environment.process_exit_code = FAILED
    page = Path(environment.parsed_options.html_file or "")
    if page.is_file():
        _rewrite(page, lambda old: onto_page(old, run))


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
