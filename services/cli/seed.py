"""The first corpus: runs retrieval's ingester as a child process, and turns its JSON lines into progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.child import Child, describe_exit

MODULE = "services.retrieval.ingest"
FINISHED = "finished"
READ_EVERY_S = 0.05
NO_CORPUS = "none"
CHANGES = {"added": "added", "updated": "updated", "completed": "embedded again", "removed": "removed"}


@dataclass(frozen=True, slots=True)
class SeedStep:
    """One line of the ingester: `read` and `embed` count up; `finished` holds the summary."""

    name: str
    done: int
    total: int
    reported: dict[str, Any]


def arguments(corpus: str, tenant: str) -> list[str]:
    return ["-m", MODULE, corpus, "--tenant", tenant, "--progress", "json"]


def no_corpus(corpus: str) -> str:
    """Why there is nothing to ingest; empty if there is something."""
    if corpus == NO_CORPUS:
        return "SEED_CORPUS=none"
    return "" if Path(corpus).exists() else f"no folder {corpus} here (SEED_CORPUS)"


async def steps(child: Child) -> AsyncIterator[SeedStep]:
    """The lines of the ingester as they arrive, until it ends."""
    async for line in _lines(child):
        try:
            reported = json.loads(line)
            yield SeedStep(str(reported["step"]), int(reported["done"]), int(reported["total"]), reported)
        except (ValueError, TypeError, KeyError):
            continue  # not one of its lines, such as a warning of a library


def summary(finished: SeedStep | None, child: Child) -> tuple[bool, str]:
    """Whether there is a corpus now, and a short summary."""
    if finished is None:
        last = child.tail(1)
        reason = last[0] if last else describe_exit(child.poll() or 0)
        return False, f"not ingested: {reason}"
    if finished.done == 0:
        return False, "no documents there" if finished.total == 0 else f"none of {finished.total} files could be read"
    reported = finished.reported
    changes = [f"{reported[word]} {phrase}" for word, phrase in CHANGES.items() if reported.get(word)]
    skipped = len(reported.get("skipped") or [])
    changes += [f"{skipped} skipped, see {child.log.name}"] if skipped else []
    return True, f"{finished.done} documents: {', '.join(changes) or 'nothing has changed'}"


async def _lines(child: Child) -> AsyncIterator[str]:
    with child.log.open(encoding="utf-8", errors="replace") as log:
        partial = ""
        while True:
            ended = child.poll() is not None  # before reading, so that the last output is read
            while piece := log.readline():
                partial += piece
                if partial.endswith("\n"):
                    yield partial
                    partial = ""
            if ended:
                return
            await asyncio.sleep(READ_EVERY_S)
