"""One scenario: Locust as a process, headless, and beside it what the router says of itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.paths import ROOT
from loadtests.report import machine
from loadtests.report.console import say
from loadtests.runs.people.kept import Played, Trouble
from loadtests.runs.people.watching import Sample, Watching, from_prometheus
from loadtests.target import BEYOND
from services.cli.child import dies_with_parent

NOT_MADE = 2
LOOK_EVERY_S = 5.0
ENDS_WITHIN_S = 180.0
"""Beyond its own length: start, the last answers, and the page."""
LAST_LINES = 12

Progress = Callable[[float], None]
"""Told how many seconds a scenario has lasted."""


class NotPlayed(RuntimeError):
    """Locust could not play it, or nothing was asked; the message has its last words."""


@dataclass(frozen=True)
class Wanted:
    """Against whom, and how. `prometheus` empty: the router's own `metrics` are read."""

    host: str
    metrics: str
    prometheus: str = ""
    share: float = 1.0
    keys: str = ""
    beyond: bool = False

    def command(self, scenario: str, folder: Path) -> list[str]:
        """What plays it."""
        more = ["--keys", self.keys] if self.keys else []
        return [
            sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py", "--headless", "--only-summary",
            "--loglevel", "WARNING", "--host", self.host, "--scenario", scenario, "--share", f"{self.share:g}",
            "--out", str(folder), *more, *([BEYOND] if self.beyond else []),
        ]  # fmt: skip


def play(scenario: str, seconds: float, wanted: Wanted, progress: Progress) -> Played:
    """Raises NotPlayed."""
    watching = Watching(wanted.metrics)
    with tempfile.TemporaryDirectory() as folder:
        watching.start()
        try:
            words = _run(wanted.command(scenario, Path(folder)), seconds, progress)
        finally:
            watching.stop()
        try:
            told = json.loads(Path(folder, "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise NotPlayed(f"{scenario} was not played:\n{words}") from None
    if not told["requests"]:
        raise NotPlayed(f"{scenario}: nothing was asked:\n{words}")
    return played(told, _samples(told, wanted, watching), machine.describe())


def played(told: Mapping[str, Any], samples: list[Sample], on: str) -> Played:
    """From Locust's summary.json, and what the router said; `on` is the machine."""
    same = {name: told[name] for name in Played.__struct_fields__ if name in told and name != "broken"}
    broken = tuple(Trouble(each["from_s"], each["until_s"]) for each in told["broken"])
    return Played(**same, broken=broken, samples=tuple(samples), machine=on)


def _samples(told: Mapping[str, Any], wanted: Wanted, watching: Watching) -> list[Sample]:
    """Within the run. Raises NotPlayed where a Prometheus was named that tells nothing."""
    began, seconds = told["began_at"], told["seconds"]
    if not wanted.prometheus:
        found = [each for each in watching.since(began) if each.at_s <= seconds]
        if not found:
            say(
                f"{wanted.metrics} told nothing of {told['scenario']}: its columns stay empty (--metrics names another)"
            )
        return found
    try:
        return from_prometheus(wanted.prometheus, began, seconds)
    except (OSError, ValueError) as error:
        raise NotPlayed(f"{wanted.prometheus} tells nothing of {told['scenario']}: {error}") from None


def _run(command: list[str], seconds: float, progress: Progress) -> str:
    """Its last words, when it has ended. A run that hangs is ended, and is none."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=dies_with_parent(signal.SIGTERM),
        )  # fmt: skip
        try:
            _wait(process, seconds + ENDS_WITHIN_S, progress)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        log.seek(0)
        return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:])


def _wait(process: subprocess.Popen[bytes], at_most_s: float, progress: Progress) -> None:
    waited_s = 0.0
    while waited_s < at_most_s:
        try:
            process.wait(LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            waited_s += LOOK_EVERY_S
            progress(waited_s)
        else:
            return
