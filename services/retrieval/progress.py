"""How an ingest tells how far it is: a bar for people, a line of JSON per step for programs, or only its result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from services.retrieval.files import Fault

STEPS = {"read": "reading files", "embed": "embedding chunks", "remove": "removing documents"}


class Shown(StrEnum):
    """`auto` is a bar on a terminal and `none` elsewhere."""

    AUTO = "auto"
    JSON = "json"
    NONE = "none"


@dataclass(slots=True)
class Summary:
    """What an ingest did, in documents; `embedded` in chunks."""

    tenant: str
    dry_run: bool = False
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    embedded: int = 0
    seconds: float = 0.0
    skipped: list[Fault] = field(default_factory=list)

    @property
    def usable(self) -> int:
        """Documents that are in, whether they were before or not."""
        return self.added + self.updated + self.unchanged


class Reporter(Protocol):
    """Told of every step; a context manager around the whole of it."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def step(self, name: str, done: int, total: int) -> None: ...

    def change(self, change: str, doc_id: str, chunks: int) -> None:
        """Of a dry run: a document that would be added, updated or removed, and the chunks to embed for it."""

    def finished(self, summary: Summary) -> None: ...


def reporter(shown: Shown) -> Reporter:
    """The one that was asked for."""
    if shown is Shown.JSON:
        return JsonLines(sys.stdout.write, sys.stdout.flush)
    console = Console(stderr=True, highlight=False)
    return Bars(console, live=shown is Shown.AUTO and console.is_terminal)


class JsonLines:
    """One object per line: `step`, `done`, `total`; the last one, `finished`, holds the summary.

    A dry run has lines with `change`, `doc_id` and `chunks` as well.
    """

    def __init__(self, write: Callable[[str], object], flush: Callable[[], object]) -> None:
        self._write = write
        self._flush = flush

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def step(self, name: str, done: int, total: int) -> None:
        self._line({"step": name, "done": done, "total": total})

    def change(self, change: str, doc_id: str, chunks: int) -> None:
        self._line({"change": change, "doc_id": doc_id, "chunks": chunks})

    def finished(self, summary: Summary) -> None:
        total = summary.usable + len(summary.skipped)
        self._line({"step": "finished", "done": summary.usable, "total": total, **asdict(summary)})

    def _line(self, record: dict[str, object]) -> None:
        self._write(json.dumps(record) + "\n")
        self._flush()


class Bars:
    """A bar per step on a live terminal, and a result in words on any."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, transient=True, disable=not live,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def step(self, name: str, done: int, total: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(STEPS[name], total=total)
        self._progress.update(self._tasks[name], completed=done, total=total)

    def change(self, change: str, doc_id: str, chunks: int) -> None:
        size = f", {chunks} chunks" if chunks else ""
        self._console.print(f"would {change} {doc_id}{size}", markup=False, soft_wrap=True)

    def finished(self, summary: Summary) -> None:
        self._progress.stop()
        for fault in summary.skipped:
            self._console.print(f"skipped {fault.path}: {fault.reason}", markup=False, style="yellow")
        if summary.dry_run:
            added, updated, removed, embedded = "to add", "to update", "to remove", "to embed; nothing was written"
        else:
            added, updated, removed = "added", "updated", "removed"
            embedded = f"embedded in {summary.seconds:.1f} s"
        self._console.print(
            f"{summary.tenant}: {summary.added} {added}, {summary.updated} {updated}, "
            f"{summary.unchanged} unchanged, {summary.removed} {removed}, {len(summary.skipped)} skipped; "
            f"{summary.embedded} chunks {embedded}",
            markup=False,
        )
