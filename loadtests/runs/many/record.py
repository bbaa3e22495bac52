"""What was observed in a run: each request at its client, each job in its worker's log, each fault, and when.

Times are seconds of the client's `perf_counter`. Logs have the machine's clock; `Clock` converts, since all processes
are on one machine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.judging.answers import Verdict
from loadtests.judging.rules import Logged
from loadtests.runs.integrity.logs import RAN, RouterLog, records
from loadtests.runs.many.deck import Fault

QUEUED, STARTED, ENDED = "job queued", "job started", "job ended"
"""Events of a worker's log at LOG_LEVEL=DEBUG, in the order of their occurrence."""


class Entry(NamedTuple):
    """One request at its client. `code`: of a rejection. `ended_s`: also where the client gave up.

    `noticed_late_s`: how long the client itself may have been stalled when the request ended.
    """

    id: str
    tenant: str
    router: str
    sent_s: float
    ended_s: float
    verdict: Verdict
    status: int = 200
    code: str = ""
    gave_up: bool = False
    noticed_late_s: float = 0.0


class Job(NamedTuple):
    """One request at a worker, by its log. It holds a slot, or one that was lent, from `queued_s` to `ended_s`."""

    worker: str
    tenant: str
    queued_s: float
    started_s: float | None = None
    ended_s: float | None = None


@dataclass
class WorkerLog:
    """`max_running`, `max_held`: the most jobs at once, in slots and with those that waited for one.

    `received`: ids of the requests that it took. `refused`: requests that it had no slot for.
    """

    name: str
    jobs: list[Job] = field(default_factory=list)
    max_running: int = 0
    max_held: int = 0
    received: list[str] = field(default_factory=list)
    refused: int = 0
    errors: list[str] = field(default_factory=list)


class Span(NamedTuple):
    """A fault and when it was. A kill ends when the process is ready again."""

    fault: Fault
    from_s: float
    to_s: float


class Ejection(NamedTuple):
    """A time in which a router sent nothing to a worker, since it took it for dead."""

    router: str
    worker: str
    from_s: float
    to_s: float = inf


class Phase(StrEnum):
    CALM = "calm"
    STORE_FROZEN = "store frozen"


class Stretch(NamedTuple):
    """A time without other faults."""

    phase: Phase
    from_s: float
    to_s: float


def never_still(begin: float, end: float) -> float:
    return 0.0


@dataclass
class Observed:
    """A whole run. `still`: how long the machine stalled in an interval. `unasked`: answers without a request.

    `held`: requests that routers still held at the end. `ended`: processes that ended by themselves.
    """

    slots: int
    entries: Sequence[Entry] = ()
    workers: Sequence[WorkerLog] = ()
    routers: Mapping[str, RouterLog] = field(default_factory=dict)
    ejections: Sequence[Ejection] = ()
    spans: Sequence[Span] = ()
    stretches: Sequence[Stretch] = ()
    still: Callable[[float, float], float] = never_still
    unasked: int = 0
    late: int = 0
    held: float = 0.0
    ended: Sequence[str] = ()

    @property
    def all_slots(self) -> int:
        return self.slots * len(self.workers)

    @property
    def jobs(self) -> list[Job]:
        return [job for worker in self.workers for job in worker.jobs]

    def phases(self, phase: Phase) -> list[Stretch]:
        return [stretch for stretch in self.stretches if stretch.phase is phase]

    def logged(self, entry: Entry) -> Sequence[Logged]:
        """The lines about it in its router's log."""
        log = self.routers.get(entry.router)
        return log.lines.get(entry.id, ()) if log is not None else ()

    def at_workers(self) -> dict[str, list[str]]:
        """By request: the workers that had it, by their own logs and by its router's."""
        found: dict[str, list[str]] = defaultdict(list)
        for worker in self.workers:
            for id in worker.received:
                found[id].append(worker.name)
        for log in self.routers.values():
            for id, lines in log.lines.items():
                found[id] += [line.worker for line in lines if line.worker]
        return found


class Clock:
    """Converts the times of logs to those of this process. Read once, at the start of a run."""

    def __init__(self, offset_s: float | None = None) -> None:
        self._offset_s = time.time() - time.perf_counter() if offset_s is None else offset_s

    def seconds(self, text: str) -> float:
        return datetime.fromisoformat(text).timestamp() - self._offset_s


def read_worker_log(name: str, path: Path, clock: Clock) -> WorkerLog:
    return worker_log(name, (record for _, record in records(path)), clock)


def worker_log(name: str, lines: Iterable[Mapping[str, Any]], clock: Clock) -> WorkerLog:
    """The order of lines is that of events, so the most jobs at once is exact. A restarted worker begins with none."""
    found, held, running = WorkerLog(name), dict[str, Job](), set[str]()
    for line in lines:
        event = line.get("event")
        if event == QUEUED:
            held[line["id"]] = Job(name, line["tenant"], clock.seconds(line["time"]))
            found.max_held = max(found.max_held, len(held))
        elif event == STARTED:
            running.add(line["id"])
            held[line["id"]] = held[line["id"]]._replace(started_s=clock.seconds(line["time"]))
            found.max_running = max(found.max_running, len(running))
        elif event == ENDED:
            running.discard(line["id"])
            found.jobs.append(held.pop(line["id"])._replace(ended_s=clock.seconds(line["time"])))
        elif event == "listening":
            found.jobs += held.values()
            held.clear()
            running.clear()
        elif event == "request" and line.get("path") == "/generate":
            if line["status"] in RAN:
                found.received.append(line["id"])
            found.refused += line["status"] == 429
        if line.get("level") == "ERROR":
            found.errors.append(f"{name}: {event}")
    found.jobs += held.values()
    return found


def read_ejections(router: str, path: Path, clock: Clock) -> list[Ejection]:
    return ejections(router, (record for _, record in records(path)), clock)


def ejections(router: str, lines: Iterable[Mapping[str, Any]], clock: Clock) -> list[Ejection]:
    """By a router's log. A restarted router takes every worker for alive."""
    found, out = list[Ejection](), dict[str, Ejection]()
    for line in lines:
        event = line.get("event")
        if event == "worker down":
            out.setdefault(line["worker"], Ejection(router, line["worker"], clock.seconds(line["time"])))
        elif event == "worker up" and line["worker"] in out:
            found.append(out.pop(line["worker"])._replace(to_s=clock.seconds(line["time"])))
        elif event == "listening":
            found += [each._replace(to_s=clock.seconds(line["time"])) for each in out.values()]
            out.clear()
    return [*found, *out.values()]
