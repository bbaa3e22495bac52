"""One scenario: Locust as a headless process, and the router's metrics beside it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from loadtests.paths import ROOT
from loadtests.report import machine
from loadtests.report.progress import Say
from loadtests.runs.people.watching import Sample, Watching, from_prometheus
from loadtests.target import BEYOND
from services.cli.child import dies_with_parent

ENDS_WITHIN_S = 180.0
"""Time beyond the scenario's length: start, last answers, and the page."""
LAST_LINES = 12


class Trouble(msgspec.Struct, frozen=True):
    """A time in which the scenario itself had slowed workers, in seconds."""

    from_s: float
    until_s: float


class Played(msgspec.Struct, frozen=True):
    """One scenario, as Locust and the router counted it. Times in ms; None: nothing was answered."""

    scenario: str
    asks: str
    users: int
    seconds: float
    requests: int
    served: int
    degraded: int
    refused: int
    left: int
    lost: int
    failed: int
    p50_ms: int | None
    p95_ms: int | None
    p99_ms: int | None
    began_at: float
    """Seconds since 1970."""
    broken: tuple[Trouble, ...] = ()
    samples: tuple[Sample, ...] = ()
    machine: str = ""


class NotPlayed(RuntimeError):
    """Locust could not play the scenario, or sent no request. The message has its last lines."""


@dataclass(frozen=True)
class Wanted:
    """The target and the options. With an empty `prometheus` the router's own `metrics` are read."""

    host: str
    metrics: str
    prometheus: str = ""
    share: float = 1.0
    keys: str = ""
    beyond: bool = False

    def command(self, scenario: str, folder: Path) -> list[str]:
        keys = ["--keys", self.keys] if self.keys else []
        return [
            sys.executable, "-m", "locust", "-f", "loadtests/locustfile.py", "--headless", "--only-summary",
            "--loglevel", "WARNING", "--host", self.host, "--scenario", scenario, "--share", f"{self.share:g}",
            "--out", str(folder), *keys, *([BEYOND] if self.beyond else []),
        ]  # fmt: skip


def play(scenario: str, seconds: float, wanted: Wanted, say: Say) -> Played:
    """Play one scenario. Raises NotPlayed."""
    watching = Watching(wanted.metrics)
    with tempfile.TemporaryDirectory() as folder:
        watching.start()
        try:
            output = _run(wanted.command(scenario, Path(folder)), seconds + ENDS_WITHIN_S)
        finally:
            watching.stop()
        try:
            summary = json.loads(Path(folder, "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise NotPlayed(f"{scenario} was not played:\n{output}") from None
    if not summary["requests"]:
        raise NotPlayed(f"{scenario}: no request was sent:\n{output}")
    return played(summary, _samples(summary, wanted, watching, say), machine.describe())


def played(summary: Mapping[str, Any], samples: Sequence[Sample], on: str) -> Played:
    """From Locust's summary.json and the router's samples; `on` is the machine."""
    return msgspec.convert({**summary, "samples": list(samples), "machine": on}, Played)


def _samples(summary: Mapping[str, Any], wanted: Wanted, watching: Watching, say: Say) -> list[Sample]:
    """The samples of the run. Raises NotPlayed if the named Prometheus has none."""
    began, seconds = summary["began_at"], summary["seconds"]
    if not wanted.prometheus:
        found = [each for each in watching.since(began) if each.at_s <= seconds]
        if not found:
            scenario = summary["scenario"]
            say(f"{wanted.metrics} has no metrics for {scenario}: its columns stay empty (--metrics names another)")
        return found
    try:
        return from_prometheus(wanted.prometheus, began, seconds)
    except (OSError, ValueError) as error:
        raise NotPlayed(f"{wanted.prometheus} has nothing about {summary['scenario']}: {error}") from None


def _run(command: list[str], within_s: float) -> str:
    """Runs it and returns its last lines. A run that hangs is killed, and leaves no summary."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            preexec_fn=dies_with_parent(signal.SIGTERM),
        )  # fmt: skip
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
        except BaseException:
            process.terminate()
            raise
        finally:
            process.wait()
        log.seek(0)
        return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:])
