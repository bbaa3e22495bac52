"""A fake PostgreSQL at the narrowest place where retrieval can be told nothing: what `database.connect` returns.

`FakePostgres.connect` takes the place of `services.retrieval.database.connect`, and gives a connection that has as much
of asyncpg's as retrieval uses. Everything above runs as it is: Session, Pool, Occasional, Store, Library, Corpus,
Vectors, Fit, Warming. Rows are held in memory, by tenant (`corpora.py`); a statement is known by its text and does what
it does over the real database (`pgstatements.py`); sessions have roles, row policies, transactions, read committed,
`statement_timeout` and locks of a tenant's writers (`pgsession.py`). Whatever it says wrong, it says in
asyncpg's exceptions. tests/contract holds it and a real server to the same sentences.

What it does not cover: SQL as a language, the wire and asyncpg itself, plans and the graph's misses, indexes, the
schema, its migration, triggers and roles of the real server, and what a disk does. Two writers of one tenant follow one
another from their first change on, where the real one lets some changes of different documents pass each other.

The time that a message takes is `round_trip_s`, and what a statement takes at the server is `query_s`: the second alone
is bounded by `statement_timeout`. Its faults, at any time:

    round_trip_s, query_s   a slow wire; a slow server
    frozen                  nothing is carried out or said until it thaws; connecting hangs
    unreachable             nothing arrives in either direction; what has arrived is carried out
    max_connections        more are refused with TooManyConnectionsError
    fails                   each statement over tables raises this error of asyncpg's
    lies                    see `Lie`
    hang_up()               every connection is lost, in the middle of whatever it does
    stop(), start()         gone: connections are lost, connecting is refused; what was committed stays
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
    """What a search is answered with."""

    ANOTHERS_ROWS = "what was found among another tenant's rows"
    NO_NUMBER = "distances that are NaN"
    TOO_FEW = "half of the rows"
    OLD_VERSION = "the corpus version before the last change, of the list of versions as well"


class FakePostgres:
    """One server. What it holds outlives `stop`.

    It works on a loop of its own, or else on that of whoever connects: a client that is frozen is frozen alone.
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
        self.connections: dict[FakeConnection, None] = {}  # in the order in which they were made
        self.waiting: dict[str, deque[Callable[[], object]]] = {}  # for a tenant's writer to end
        self.tables = Tables(self.clock_ms, DIMENSIONS)
        self.statements = 0
        self._loop = loop
        self._frozen = self._unreachable = False
        self._listening = True
        self._held: list[tuple[bool, Callable[[], None]]] = []

    def put(self, tenant: str, corpus: Corpus) -> None:
        """A corpus that is there from the beginning."""
        self.tables.corpora[tenant] = corpus

    @property
    def corpora(self) -> dict[str, Corpus]:
        """What is committed, by tenant."""
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
        """It ends. Whatever hung in a freeze has an end as well."""
        self._listening = False
        self.hang_up()
        self._frozen = self._unreachable = False
        self._go_on()

    def start(self) -> None:
        """Listen again, over the same rows."""
        self._listening = True

    def hang_up(self) -> None:
        """Every connection is lost."""
        for connection in list(self.connections):
            connection.lose()

    def when_well(self, act: Callable[[], None], on_the_wire: bool) -> None:
        """Now, or as soon as the server is not frozen and, if it needs the wire, reachable; in the order of asking."""
        if self._frozen or (on_the_wire and self._unreachable):
            self._held.append((on_the_wire, act))
        else:
            act()

    def _go_on(self) -> None:
        held, self._held = self._held, []
        for on_the_wire, act in held:
            self.when_well(act, on_the_wire)

    def released(self, tenant: str) -> None:
        """The next writer of this tenant may begin."""
        if waiting := self.waiting.get(tenant):
            waiting.popleft()()

    def bury_the_dead(self) -> None:
        """A client whose process was killed has said nothing: its kernel has closed its connections."""
        for connection in [each for each in self.connections if each.client.is_closed()]:
            connection.terminate()

    def lied(self, statement: Statement, sql: str, rows: list[Row]) -> list[Row]:
        """The rows as they are said."""
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
        """Whose rows a liar gives out instead: those of the biggest other tenant."""
        if self.lies is not Lie.ANOTHERS_ROWS:
            return None
        others = {name: corpus.chunks for name, corpus in self.corpora.items() if name != tenant}
        return max(others, key=lambda name: (others[name], name), default=None)

    def clock_ms(self) -> int:
        """Its wall clock."""
        loop = self._loop or asyncio.get_running_loop()
        return round((self.epoch_s + loop.time()) * 1000)
