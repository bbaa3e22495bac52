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
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from services.retrieval.files import Fault

STEPS = {
    "read": "comparing files",
    "embed": "embedding documents",
    "reembed": "embedding chunks",
    "remove": "removing documents",
}


class ProgressStyle(StrEnum):
    """`auto` is a bar on a terminal and `none` elsewhere."""

    AUTO = "auto"
    JSON = "json"
    NONE = "none"


@dataclass(slots=True)
class IngestSummary:
    """What an ingest did, in documents; `embedded` in chunks.

    `completed` are those of which the text was in, and vectors of this model were not.
    """

    tenant: str
    dry_run: bool = False
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    completed: int = 0
    removed: int = 0
    embedded: int = 0
    seconds: float = 0.0
    skipped: list[Fault] = field(default_factory=list)

    @property
    def usable(self) -> int:
        """Documents that are in, whether they were before or not."""
        return self.added + self.updated + self.unchanged + self.completed

    @property
    def total(self) -> int:
        """Documents that there were to look at."""
        return self.usable + len(self.skipped)

    def sentence(self) -> str:
        """The same for people."""
        if self.dry_run:
            added, updated, removed, embedded = "to add", "to update", "to remove", "to embed; nothing was written"
        else:
            added, updated, removed = "added", "updated", "removed"
            embedded = f"embedded in {self.seconds:.1f} s"
        completed = f"{self.completed} without this model's vectors, " if self.completed else ""
        return (
            f"{self.tenant}: {self.added} {added}, {self.updated} {updated}, {self.unchanged} unchanged, {completed}"
            f"{self.removed} {removed}, {len(self.skipped)} skipped; {self.embedded} chunks {embedded}"
        )


@dataclass(slots=True)
class Reembedded:
    """What became of the vectors: `embedded` by this model, `removed` of other models, and `left` to do, in chunks."""

    model: str
    dry_run: bool = False
    tenants: int = 0
    documents: int = 0
    embedded: int = 0
    removed: int = 0
    left: int = 0
    seconds: float = 0.0
    skipped: list[Fault] = field(default_factory=list)

    @property
    def usable(self) -> int:
        """What was done, or would be."""
        return self.embedded + self.removed

    @property
    def total(self) -> int:
        """What there was to do."""
        return self.usable + self.left

    def sentence(self) -> str:
        """The same for people."""
        of = f"{self.model}: of {self.tenants} tenants"
        if self.dry_run:
            return f"{of}, {self.embedded} chunks to embed, {self.removed} vectors of other models to remove"
        return (
            f"{of}, {self.embedded} chunks embedded, {self.removed} vectors of other models removed, "
            f"{self.left} left, in {self.seconds:.1f} s"
        )


class Reporter(Protocol):
    """Told of every step; a context manager around the whole of it."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def step(self, name: str, done: int, total: int) -> None: ...

    def change(self, change: str, doc_id: str, chunks: int) -> None:
        """Of a dry run: a document that would be added, updated, embedded or removed, and the chunks to embed for it.

        When a corpus is embedded anew, a tenant stands in a document's place.
        """

    def finished(self, summary: IngestSummary | Reembedded) -> None: ...


def reporter(shown: ProgressStyle) -> Reporter:
    """The one that was asked for."""
    if shown is ProgressStyle.JSON:
        return JsonLines(sys.stdout.write, sys.stdout.flush)
    console = Console(stderr=True, highlight=False)
    return Bars(console, live=shown is ProgressStyle.AUTO and console.is_terminal)


class JsonLines:
    """One object per line: `step`, `done`, `total`; the last one, `finished`, holds the summary.

    `read` counts files, `embed` KiB of them, `reembed` chunks, `remove` and `finished` documents, or chunks again.

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

    def finished(self, summary: IngestSummary | Reembedded) -> None:
        self._line({"step": "finished", "done": summary.usable, "total": summary.total, **asdict(summary)})

    def _line(self, record: dict[str, object]) -> None:
        self._write(json.dumps(record) + "\n")
        self._flush()


class Bars:
    """A bar per step on a live terminal, and a result in words on any."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
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
        size = f", {chunks} {'vectors' if change == 'forget' else 'chunks'}" if chunks else ""
        self._console.print(f"would {change} {doc_id}{size}", markup=False, soft_wrap=True)

    def finished(self, summary: IngestSummary | Reembedded) -> None:
        self._progress.stop()
        for fault in summary.skipped:
            self._console.print(f"skipped {fault.path}: {fault.reason}", markup=False, style="yellow")
        self._console.print(summary.sentence(), markup=False)
