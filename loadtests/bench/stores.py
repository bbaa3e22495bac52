"""Embedded stores for a bench: each in a folder of its own, and gone with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.cli.ports import free_port
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey


@contextmanager
def postgres() -> Iterator[EmbeddedPostgres]:
    """Empty, with Weir's schema. It runs, and is stopped with the block; it writes to no disk for good."""
    with _folder() as folder:
        server = EmbeddedPostgres(folder / "postgres", free_port(), log=folder / "log", durable=False)
        server.start()  # from this thread: a child dies with the thread that forked it
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def valkey() -> Iterator[EmbeddedValkey]:
    """Empty. It runs, and is stopped with the block."""
    with _folder() as folder:
        server = EmbeddedValkey(folder / "valkey", free_port(), log=folder / "log")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)
