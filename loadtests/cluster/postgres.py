"""A fake PostgreSQL: `FakePostgres.connect` replaces `services.retrieval.database.connect`.

Its connection has the part of asyncpg's interface that retrieval uses, and raises asyncpg's errors. Retrieval's code
runs unchanged. Rows are in memory by tenant (`corpora.py`). Statements are recognized by their text
(`pgstatements.py`). Sessions have roles, row policies, transactions, read committed, `statement_timeout` and locks of a
tenant's writers (`pgsession.py`). tests/contract runs the same checks on it and a real server.

Not covered: SQL as a language, the wire and asyncpg itself, plans and graph misses, indexes, schema, migration,
triggers and roles of the real server, disks. Two writers of one tenant are serialized from their first change on; the
real server lets some changes of different documents overlap.

A message takes `round_trip_s`, and a statement `query_s` at the server; `statement_timeout` bounds only the latter. Its
faults, at any time:

    round_trip_s, query_s   a slow network; a slow server
    frozen                  executes and sends nothing until it thaws; connecting hangs
    unreachable             nothing arrives in either direction; what has arrived is executed
    max_connections         further connections get TooManyConnectionsError
    fails                   each statement over tables raises this error of asyncpg's
    lies                    see `Lie`
    hang_up()               loses every connection, whatever it is doing
    stop(), start()         down: connections are lost, connecting is refused; committed data stays
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import asyncpg

from loadtests.cluster.corpora import Corpus
from loadtests.cluster.loop import EPOCH_S
from loadtests.cluster.pgconnection import FakeConnection
from loadtests.cluster.pgsession import Tables
from loadtests.cluster.pgstatements import Row, Statement
from services.retrieval.modelfolder import DIMENSIONS
from services.retrieval.store import CORPORA


class Lie(StrEnum):
    """False answers to a search."""

    ANOTHERS_ROWS = "what was found among another tenant's rows"
    NO_NUMBER = "distances that are NaN"
    TOO_FEW = "half of the rows"
    OLD_VERSION = "the corpus version before the last change, of the list of versions as well"


class FakePostgres:
    """One server. Its data survives `stop`.

    It runs on its own loop, or else on the caller's, so that freezing a client does not freeze the server.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        round_trip_s: float = 0.001,
        query_s: float = 0.0,
        max_connections: int = 100,
    ) -> None:
        self.round_trip_s = round_trip_s
        self.query_s = query_s
        self.max_connections = max_connections
        self.epoch_s = EPOCH_S
        self.fails: type[asyncpg.PostgresError] | None = None
        self.lies: Lie | None = None
        self.connections: dict[FakeConnection, None] = {}  # in the order of connecting
        self.waiting: dict[str, deque[Callable[[], object]]] = {}  # callbacks for the end of a tenant's writer
        self.tables = Tables(self.clock_ms, DIMENSIONS)
        self.statements = 0
        self._loop = loop
        self._frozen = self._unreachable = False
        self._listening = True
        self._held: list[tuple[bool, Callable[[], None]]] = []

    def put(self, tenant: str, corpus: Corpus) -> None:
        """Insert a corpus directly."""
        self.tables.corpora[tenant] = corpus

    @property
    def corpora(self) -> dict[str, Corpus]:
        return self.tables.corpora

    @property
    def frozen(self) -> bool:
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self._frozen = frozen
        self._go_on()

    @property
    def unreachable(self) -> bool:
        return self._unreachable

    @unreachable.setter
    def unreachable(self, unreachable: bool) -> None:
        self._unreachable = unreachable
        self._go_on()

    async def connect(self, url: str, *, timeout_s: float, application: str) -> Any:
        """A connection. Raises ConnectionRefusedError, TooManyConnectionsError, or TimeoutError after `timeout_s`."""
        client = asyncio.get_running_loop()
        loop = self._loop or client
        self.bury_the_dead()
        greeted: asyncio.Future[None] = client.create_future()

        def greet() -> None:
            if not greeted.done():
                greeted.set_result(None)

        loop.call_later(2 * self.round_trip_s, self.when_well, greet, True)
        try:
            async with asyncio.timeout(timeout_s):
                await greeted
        except TimeoutError:
            raise TimeoutError(f"no connection within {timeout_s:g} s") from None
        if not self._listening:
            raise ConnectionRefusedError("nobody listens there")
        if len(self.connections) >= self.max_connections:
            raise asyncpg.TooManyConnectionsError("sorry, too many clients already")
        connection = FakeConnection(self, loop, client, application)
        self.connections[connection] = None
        return connection

    def stop(self) -> None:
        """Stop. Calls that hung in a freeze end too."""
        self._listening = False
        self.hang_up()
        self._frozen = self._unreachable = False
        self._go_on()

    def start(self) -> None:
        """Listen again, with the same rows."""
        self._listening = True

    def hang_up(self) -> None:
        for connection in list(self.connections):
            connection.lose()

    def when_well(self, act: Callable[[], None], on_the_wire: bool) -> None:
        """Call `act` now, or when the server is not frozen and, if needed, reachable; in order."""
        if self._frozen or (on_the_wire and self._unreachable):
            self._held.append((on_the_wire, act))
        else:
            act()

    def _go_on(self) -> None:
        held, self._held = self._held, []
        for on_the_wire, act in held:
            self.when_well(act, on_the_wire)

    def released(self, tenant: str) -> None:
        """Let the next writer of this tenant start."""
        if waiting := self.waiting.get(tenant):
            waiting.popleft()()

    def bury_the_dead(self) -> None:
        """Close the connections of killed clients, as their kernel does."""
        for connection in [each for each in self.connections if each.client.is_closed()]:
            connection.terminate()

    def lied(self, statement: Statement, sql: str, rows: list[Row]) -> list[Row]:
        """The rows, falsified if the server lies."""
        if self.lies is Lie.OLD_VERSION and sql == CORPORA.sql:
            return [{**row, "version": self.corpora[str(row["tenant"])].before} for row in rows]
        if not statement.searches or not rows:
            return rows
        if self.lies is Lie.NO_NUMBER:
            return [{**row, "distance": float("nan")} for row in rows]
        if self.lies is Lie.TOO_FEW:
            return rows[: len(rows) // 2]
        if self.lies is Lie.OLD_VERSION:
            before = {corpus.version: corpus.before for corpus in self.corpora.values()}
            return [{**row, "corpus_version": before.get(row["corpus_version"], 0)} for row in rows]  # type: ignore[call-overload]
        return rows

    def another(self, tenant: str) -> str | None:
        """The tenant whose rows a liar returns: the largest other one."""
        if self.lies is not Lie.ANOTHERS_ROWS:
            return None
        others = {name: corpus.chunks for name, corpus in self.corpora.items() if name != tenant}
        return max(others, key=lambda name: (others[name], name), default=None)

    def clock_ms(self) -> int:
        loop = self._loop or asyncio.get_running_loop()
        return round((self.epoch_s + loop.time()) * 1000)
