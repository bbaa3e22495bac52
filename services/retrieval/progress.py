"""How an ingest reports its progress: a bar, a line of JSON for each step, or only the result."""

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
    """The outcome of an ingest, in documents; `embedded` in chunks.

    `completed`: documents whose text was stored and whose vectors of this model were missing.
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
        """Documents that are stored now."""
        return self.added + self.updated + self.unchanged + self.completed

    @property
    def total(self) -> int:
        """Documents that were found."""
        return self.usable + len(self.skipped)

    def sentence(self) -> str:
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
    """The outcome in chunks: `embedded` by this model, `removed` vectors of other models, `left` to do."""

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
        """Chunks that were done, or would be."""
        return self.embedded + self.removed

    @property
    def total(self) -> int:
        """Chunks that there were to do."""
        return self.usable + self.left

    def sentence(self) -> str:
        of = f"{self.model}: of {self.tenants} tenants"
        if self.dry_run:
            return f"{of}, {self.embedded} chunks to embed, {self.removed} vectors of other models to remove"
        return (
            f"{of}, {self.embedded} chunks embedded, {self.removed} vectors of other models removed, "
            f"{self.left} left, in {self.seconds:.1f} s"
        )


class Reporter(Protocol):
    """Receives every step. The whole run is in its context."""

    def __enter__(self) -> Reporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def step(self, name: str, done: int, total: int) -> None: ...

    def change(self, change: str, doc_id: str, chunks: int) -> None:
        """Report what a dry run would do with a document: add, update, embed or remove, and the number of chunks to
        embed.

        In a run that reembeds or forgets, `doc_id` is a tenant.
        """

    def finished(self, summary: IngestSummary | Reembedded) -> None: ...


def reporter(shown: ProgressStyle) -> Reporter:
    if shown is ProgressStyle.JSON:
        return JsonLines(sys.stdout.write, sys.stdout.flush)
    console = Console(stderr=True, highlight=False)
    return Bars(console, live=shown is ProgressStyle.AUTO and console.is_terminal)


class JsonLines:
    """One object a line: `step`, `done`, `total`; the last step, `finished`, also holds the summary.

    Units: `read` files, `embed` KiB of files, `reembed` chunks, `remove` documents, `finished` documents or chunks. A
    dry run also writes lines with `change`, `doc_id` and `chunks`.
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
    """A bar for each step on a live terminal, and the result in words."""

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
