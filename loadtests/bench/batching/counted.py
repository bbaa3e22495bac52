"""`python -m loadtests.bench.batching.counted FILE FD`: an engine's process that counts what it computes in vain.

For every sequence that was dropped, it compares its tokens at that moment with those at the process's end, by the
engine's own counters.
"""

from __future__ import annotations

import json
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

from services.worker.child import make_engine, serve
from services.worker.engine import Engine, Sequence, Step
from services.worker.engine_wire import EngineSpec


class Counted:
    """An engine that records its drops, and writes the record when it is closed."""

    def __init__(self, engine: Engine, record: Path) -> None:
        self._engine = engine
        self._record = record
        self._running: set[Sequence] = set()
        self._dropped: list[tuple[Sequence, int]] = []
        self._rows_too_many = 0
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def admit(self, sequence: Sequence) -> None:
        self._engine.admit(sequence)
        self._running.add(sequence)

    def drop(self, sequence: Sequence) -> None:
        self._engine.drop(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
            self._dropped.append((sequence, sequence.completion_tokens))

    def step(self) -> Step:
        here = len(self._running)
        step = self._engine.step()
        self._steps += 1
        self._rows_too_many += max(0, step.batch_size - here)
        for sequence, _ in (*step.finished, *step.lost):
            self._running.remove(sequence)
        return step

    def close(self) -> None:
        counts = {
            "steps": self._steps,
            "dropped": len(self._dropped),
            "tokens_after_drop": sum(sequence.completion_tokens - then for sequence, then in self._dropped),
            "rows_too_many": self._rows_too_many,
            "left_in_memory": self._engine.kv_usage,
        }
        self._engine.close()
        self._record.write_text(json.dumps(counts), encoding="utf-8")


def _make(record: Path, spec: EngineSpec) -> Any:
    return Counted(make_engine(spec), record)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[2])), partial(_make, Path(sys.argv[1])))
