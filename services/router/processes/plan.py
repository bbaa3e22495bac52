"""What a parent of several router processes does next, as a pure decision (decision record 086).

    waiting    has ended; starts again at `due`
    starting   runs, and does not accept connections yet
    ready      accepts connections
    leaving    accepts no new connections, and ends when its requests have ended

Every event returns actions in the order in which they are to be done. While a process is not ready, the ready ones
accept from its socket too (`COVER`), so that no connection waits for a start. A process that ends by itself starts
again: at once if it has served for STEADY_S, else after a delay that doubles from FIRST_DELAY_S to MAX_DELAY_S. The
parent gives up only if no process has ever been ready. Times are seconds of one clock.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from services.router.processes.link import COVER, HAND_OVER, OWN
from services.runtime.settings import EXIT_BAD_SETTINGS
from services.runtime.starting import EXIT_CANNOT_START, EXIT_PORT_TAKEN

STEADY_S = 10.0
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0
START_TRIES = 3  # of one process, before any is ready
START_WITHIN_S = 120.0
SPARE_S = 5.0  # beyond the time that a process may take to leave, before SIGKILL
HOPELESS = frozenset({EXIT_BAD_SETTINGS, EXIT_PORT_TAKEN, EXIT_CANNOT_START})
"""Exit statuses of faults that only the operator can mend."""
BY_SIGTERM = -signal.SIGTERM


class ProcessState(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class StartChild:
    index: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to a process."""

    index: int
    number: signal.Signals


@dataclass(frozen=True, slots=True)
class Notify:
    """Send a word over the link."""

    index: int
    word: bytes


@dataclass(frozen=True, slots=True)
class Release:
    """Close the parent's copies of the public sockets: what the processes close is closed."""


@dataclass(frozen=True, slots=True)
class Say:
    level: str
    event: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """End the parent. No process runs, or those that do are to be killed."""

    status: int


Action = StartChild | Signal | Notify | Release | Say | Finish


@dataclass(slots=True)
class RouterChild:
    """The place of a process, which successive processes take."""

    state: ProcessState = ProcessState.WAITING
    due: float | None = 0.0  # of the start while waiting; of SIGKILL otherwise
    ready_at: float = 0.0
    failures: int = 0  # in a row
    starts: int = 0
    covers: bool = False
    reload: bool = False  # once it is ready
    asked_to_leave: bool = False

    @property
    def runs(self) -> bool:
        return self.state is not ProcessState.WAITING


class Plan:
    """`leave_s`: how long a process may take from SIGTERM to its end; `hand_over_s`: from HAND_OVER to its end."""

    def __init__(self, count: int, *, leave_s: float, hand_over_s: float) -> None:
        self.children = [RouterChild() for _ in range(count)]
        self.stopping = False
        self._leave_s = leave_s + SPARE_S
        self._hand_over_s = hand_over_s + SPARE_S
        self._status = 0
        self._served = False  # a process has been ready
        self._to_replace: list[int] = []  # by a rolling restart, in order
        self._handing_over: int | None = None

    @property
    def restarting(self) -> bool:
        """Whether a rolling restart is under way."""
        return bool(self._to_replace)

    def of(self, state: ProcessState) -> list[int]:
        return [index for index, child in enumerate(self.children) if child.state is state]

    def next_at(self) -> float | None:
        """When `tick` has something to do; None: only after an event."""
        return min((child.due for child in self.children if child.due is not None), default=None)

    # Events

    def tick(self, now: float) -> list[Action]:
        """Start what is due, and kill what has taken too long."""
        actions: list[Action] = []
        for index, child in enumerate(self.children):
            if child.due is None or now < child.due:
                continue
            if child.state is ProcessState.WAITING:
                child.state, child.due, child.covers = ProcessState.STARTING, now + START_WITHIN_S, False
                child.starts += 1
                actions.append(StartChild(index))
            else:
                child.due = None
                self._status = 1 if self.stopping else self._status
                text = "a router process did not become ready in time: it is killed"
                if child.state is not ProcessState.STARTING:
                    text = "a router process did not leave in time: it is killed"
                actions += [Say("ERROR", text, {"process": index}), Signal(index, signal.SIGKILL)]
        return actions

    def ready(self, index: int, now: float) -> list[Action]:
        child = self.children[index]
        if child.state is not ProcessState.STARTING or self.stopping:
            return []
        child.state, child.due, child.ready_at, self._served = ProcessState.READY, None, now, True
        reload, child.reload = child.reload, False
        actions: list[Action] = [Signal(index, signal.SIGHUP)] if reload else []
        if index == self._handing_over:
            self._handing_over = None
            del self._to_replace[0]
            if not self._to_replace:
                actions.append(
                    Say("INFO", "all router processes have been replaced", {"processes": len(self.children)})
                )
        return [*actions, *self._covering(), *self._hand_over_next(now)]

    def leaving(self, index: int, now: float) -> list[Action]:
        """It accepts no new connections from now on."""
        child = self.children[index]
        if child.state is ProcessState.READY:
            child.state = ProcessState.LEAVING
            if child.due is None:
                child.due = now + self._leave_s
        return list(self._covering())

    def ended(self, index: int, status: int, now: float) -> list[Action]:
        """`status`: the exit status, or the negative number of the signal that ended it."""
        child = self.children[index]
        was, asked, child.asked_to_leave = child.state, child.asked_to_leave, False
        child.state, child.due, child.covers = ProcessState.WAITING, None, False
        if self.stopping:
            if status != 0 and not (was is ProcessState.STARTING and status == BY_SIGTERM):
                self._status = self._status or 1
            return self._finished()
        logged = Say(
            "INFO" if status == 0 and asked else "ERROR",
            "a router process ended",
            {"process": index, "status": status, "was": str(was)},
        )
        if was is ProcessState.STARTING:
            return [logged, *self._failed_to_start(index, status, now)]
        if asked:
            child.due, child.failures = now, 0
        else:
            steady = now - child.ready_at >= STEADY_S
            child.failures = 0 if steady else child.failures + 1
            child.due = now + delay_s(child.failures)
        return [logged, *self._covering(), *self.tick(now)]

    def stop(self, now: float) -> list[Action]:
        """SIGTERM or SIGINT: all drain. A second one ends everything at once."""
        if self.stopping:
            return [Finish(1)]
        return self._stop(now)

    def reload(self) -> list[Action]:
        """SIGHUP, to those that are ready; to one that starts once it is."""
        actions: list[Action] = []
        for index, child in enumerate(self.children):
            if child.state is ProcessState.READY:
                actions.append(Signal(index, signal.SIGHUP))
            elif child.state is ProcessState.STARTING:
                child.reload = True
        return actions

    def restart(self, now: float) -> list[Action]:
        """Replace the processes, one after the other. Does nothing while that is under way, or when stopping."""
        if self.stopping or self._to_replace:
            return [Say("WARNING", "a rolling restart was not begun", {"stopping": self.stopping})]
        self._to_replace = list(range(len(self.children)))
        logged = Say("INFO", "the router processes are being replaced", {"processes": len(self.children)})
        return [logged, *self._hand_over_next(now)]

    # Decisions

    def _hand_over_next(self, now: float) -> Iterator[Action]:
        """The next process of a rolling restart leaves once all are ready."""
        if (
            not self._to_replace
            or self._handing_over is not None
            or len(self.of(ProcessState.READY)) < len(self.children)
        ):
            return
        index = self._handing_over = self._to_replace[0]
        child = self.children[index]
        child.asked_to_leave, child.due = True, now + self._hand_over_s
        yield Notify(index, HAND_OVER)

    def _covering(self) -> Iterator[Action]:
        """Ready processes accept from all sockets while one of the processes is not ready, unless all leave."""
        if self.stopping:
            return
        ready = self.of(ProcessState.READY)
        lacking = len(ready) < len(self.children)
        for index in ready:
            if self.children[index].covers != lacking:
                self.children[index].covers = lacking
                yield Notify(index, COVER if lacking else OWN)

    def _failed_to_start(self, index: int, status: int, now: float) -> list[Action]:
        child = self.children[index]
        child.failures += 1
        if not self._served and (status in HOPELESS or child.failures >= START_TRIES):
            self._status = status if status in HOPELESS else EXIT_CANNOT_START
            text = "no router process can start: the parent gives up; see what they wrote"
            return [Say("ERROR", text, {"process": index, "status": status}), *self._stop(now)]
        child.due = now + delay_s(child.failures)
        actions: list[Action] = []
        if self._to_replace and index == self._handing_over:
            self._to_replace, self._handing_over = [], None
            actions.append(Say("ERROR", "the rolling restart ends: the new process does not start", {"process": index}))
        return [*actions, *self._covering()]

    def _stop(self, now: float) -> list[Action]:
        self.stopping, self._to_replace, self._handing_over = True, [], None
        actions: list[Action] = [Release()]
        for index, child in enumerate(self.children):
            child.due = now + self._leave_s if child.runs else None
            if child.runs:
                actions.append(Signal(index, signal.SIGTERM))
        return [*actions, *self._finished()]

    def _finished(self) -> list[Action]:
        return [] if any(child.runs for child in self.children) else [Finish(self._status)]


def delay_s(failures: int) -> float:
    """Seconds before the next start, after so many failures in a row."""
    return 0.0 if failures == 0 else min(FIRST_DELAY_S * 2.0 ** min(failures - 1, 32), MAX_DELAY_S)


def exit_text(status: int) -> str:
    """An exit status for people, e.g. `status 1` or `SIGKILL`."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def indexes(actions: Sequence[Action], kind: type[StartChild]) -> list[int]:
    """Of the processes that these actions start; for tests."""
    return [action.index for action in actions if isinstance(action, kind)]
