"""An embedded PostgreSQL or Valkey for the duration of a block, in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from loadtests.cluster.processes import free_ports
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey

Server = TypeVar("Server", EmbeddedPostgres, EmbeddedValkey)


@contextmanager
def postgres() -> Iterator[EmbeddedPostgres]:
    """Empty, with Weir's schema. Call it in the main thread: a child dies with the thread that forked it."""
    with _folder() as folder:
        log = folder / "log"
        yield from _running(EmbeddedPostgres(folder / "data", *free_ports(1), log=log, durable=False))


@contextmanager
def valkey() -> Iterator[EmbeddedValkey]:
    """Empty. Call it in the main thread."""
    with _folder() as folder:
        yield from _running(EmbeddedValkey(folder / "data", *free_ports(1), log=folder / "log"))


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
