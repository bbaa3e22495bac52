"""Services inside of one event loop: listeners in memory, a clock that jumps, and chance that is the same each time."""

from __future__ import annotations

import asyncio
import io
import itertools
import random
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from services.governor import app as governor
from services.retrieval import app as retrieval
from services.router import app as router
from services.runtime import clock, connection, log, serve, service
from tests.oracles.memory import Address, MemoryLoop

T = TypeVar("T")
FIRST_PORT = 8000
BEGAN_S = 1_750_000_000.0
"""The wall clock at the loop's second 0: 15 June 2025, 15:06:40 UTC."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """To its end, in memory and in virtual time, with the same chance each time."""
    with _always_the_same(), asyncio.Runner(loop_factory=MemoryLoop) as runner:
        return runner.run(main)


@contextmanager
def _always_the_same() -> Iterator[None]:
    """What services take from the system, given: ports, chance, ids, the wall clock, and where logs go."""
    ports = itertools.count(FIRST_PORT)
    token_hex = SimpleNamespace(token_hex=lambda size: "0" * 2 * size)
    wall = SimpleNamespace(time=_wall_s, time_ns=lambda: int(_wall_s() * 1e9))

    def bind(host: str, port: int, variable: str) -> Address:
        return Address(host, port or next(ports))

    with ExitStack() as stack:
        for module, name, given in (
            (serve, "_bind", bind),
            (serve, "formatdate", lambda usegmt: formatdate(_wall_s(), usegmt=usegmt)),
            (service, "secrets", token_hex),
            (connection, "secrets", token_hex),
            (clock, "time", wall),
            (log, "time", wall),
            (log, "sys", SimpleNamespace(stdout=SimpleNamespace(buffer=io.BytesIO()), stderr=io.StringIO())),
            (router, "Random", _seeded),
            *((module, "random", SimpleNamespace(Random=_seeded)) for module in (governor, retrieval)),
        ):
            stack.enter_context(mock.patch.object(module, name, given))
        yield


def _seeded(*_: object) -> random.Random:
    return random.Random(1)


def _wall_s() -> float:
    """The wall clock goes as the loop does; where none runs it stands."""
    try:
        return BEGAN_S + asyncio.get_running_loop().time()
    except RuntimeError:
        return BEGAN_S
