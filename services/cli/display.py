"""What `weir up` shows: a table updated in place, or plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 24
OTHER_COLUMNS_WIDTH, MIN_NOTE_WIDTH = 54, 20


@dataclass
class DisplayRow:
    name: str
    state: str = "waiting"  # waiting, starting, ready, skipped
    where: str = ""
    note: str = ""
    began_s: float = 0.0
    took_s: float = 0.0
    memory_mb: float = 0.0
    done: int = 0
    total: int = 0


class Display(Protocol):
    def shown(self) -> contextlib.AbstractContextManager[None]: ...
    def starting(self, name: str, where: str = "", note: str = "") -> None: ...
    def progress(self, name: str, done: int, total: int, note: str = "") -> None: ...
    def ready(self, name: str, pid: int | None = None, note: str = "") -> None: ...
    def skipped(self, name: str, note: str) -> None: ...
    def show(self, text: RenderableType) -> None: ...


class PlainDisplay:
    """One line per event, without control codes and without line breaks."""

    def __init__(self, console: Console, names: list[str]) -> None:
        self._console = console
        self._rows = {name: DisplayRow(name) for name in names}
        self._width = max(map(len, names), default=0)
        self._printed: dict[str, int] = {}

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        yield

    def starting(self, name: str, where: str = "", note: str = "") -> None:
        row = self._rows[name]
        row.where, row.began_s = where or row.where, row.began_s or time.monotonic()
        self._line("starting", row, note)

    def progress(self, name: str, done: int, total: int, note: str = "") -> None:
        tenth = 10 * done // total if total else 0
        if self._printed.get(name, -1) < tenth < 10:  # at most ten lines, however long it takes
            self._printed[name] = tenth
            self._line("working", self._rows[name], f"{done}/{total} {note}".strip())

    def ready(self, name: str, pid: int | None = None, note: str = "") -> None:
        row = self._rows[name]
        figures = f"{time.monotonic() - row.began_s:.1f} s"
        if pid is not None:
            figures += f", {memory_mb(pid):.0f} MB, pid {pid}"
        self._line("ready", row, f"{figures}  {note}".strip())

    def skipped(self, name: str, note: str) -> None:
        self._line("skipped", self._rows[name], note)

    def show(self, text: RenderableType) -> None:
        self._console.print(text, soft_wrap=True)

    def _line(self, word: str, row: DisplayRow, note: str) -> None:
        line = f"{word:<9} {row.name:<{self._width}}  {row.where:<15}  {note}".rstrip()
        self._console.print(Text(line), soft_wrap=True)


class LiveDisplay:
    """One table that is redrawn in place."""

    def __init__(self, console: Console, names: list[str]) -> None:
        self._console = console
        self._rows = {name: DisplayRow(name) for name in names}
        self._spinners = {name: Spinner("dots", style="cyan") for name in names}
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=12, transient=False)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        with self._live:
            yield

    def starting(self, name: str, where: str = "", note: str = "") -> None:
        row = self._rows[name]
        row.state, row.where, row.note = "starting", where or row.where, note
        row.began_s = row.began_s or time.monotonic()

    def progress(self, name: str, done: int, total: int, note: str = "") -> None:
        row = self._rows[name]
        row.done, row.total, row.note = done, total, note

    def ready(self, name: str, pid: int | None = None, note: str = "") -> None:
        row = self._rows[name]
        row.state, row.note, row.took_s = "ready", note, time.monotonic() - row.began_s
        row.memory_mb = memory_mb(pid) if pid is not None else 0.0

    def skipped(self, name: str, note: str) -> None:
        row = self._rows[name]
        row.state, row.note = "skipped", note

    def show(self, text: RenderableType) -> None:
        self._console.print(text)

    def table(self) -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=3, justify="right")
        table.add_column(no_wrap=True)
        table.add_column(style="dim", no_wrap=True, max_width=24, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", style="dim", no_wrap=True)
        table.add_column(style="dim", no_wrap=True)
        for row in self._rows.values():
            table.add_row(*self._cells(row))
        return Group("", table, "")

    def _cells(self, row: DisplayRow) -> list[RenderableType]:
        name = Text(row.name, style="" if row.state in ("ready", "starting") else "dim")
        if row.state == "starting":
            elapsed = f"{time.monotonic() - row.began_s:.1f} s"
            return [self._spinners[row.name], name, row.where, Text(elapsed, style="dim"), "", _activity(row)]
        if row.state == "ready":
            memory = f"{row.memory_mb:.0f} MB" if row.memory_mb else ""
            return [Text("✓", style="green"), name, row.where, f"{row.took_s:.1f} s", memory, self._note(row)]
        mark = Text("–" if row.state == "skipped" else "·", style="dim")
        return [mark, name, row.where, "", "", self._note(row)]

    def _note(self, row: DisplayRow) -> Text:
        """The last column gets the remaining width, so that a long text cannot squeeze the table."""
        note = Text(row.note)
        note.truncate(max(MIN_NOTE_WIDTH, self._console.width - OTHER_COLUMNS_WIDTH), overflow="ellipsis")
        return note


def _activity(row: DisplayRow) -> RenderableType:
    if not row.total:
        return Text(row.note)
    line = Table.grid(padding=(0, 1, 0, 0))
    bar = ProgressBar(total=row.total, completed=row.done, width=BAR_WIDTH, complete_style="cyan")
    line.add_row(bar, Text(f"{row.done}/{row.total} {row.note}".strip(), style="dim"))
    return line


def memory_mb(pid: int) -> float:
    """Memory of a process and its children in MB; shared pages count once (PSS) where the system reports it."""
    try:
        process = psutil.Process(pid)
        return sum(_bytes(member) for member in [process, *process.children(recursive=True)]) / 1e6
    except psutil.Error:
        return 0.0


def _bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return 0 if not process.is_running() else int(process.memory_info().rss)


def display_for(console: Console, names: list[str]) -> Display:
    return LiveDisplay(console, names) if console.is_terminal else PlainDisplay(console, names)
