"""A connection of the fake PostgreSQL, with the part of asyncpg's interface that retrieval uses.

One exchange at a time; a second one raises asyncpg's error. A message takes half a round trip, is executed, and its
answer takes another half. A cancelled caller returns at once, and the server cancels the statement. A lost connection
fails its exchange and calls its listeners in a later turn of the loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, KeysView
from typing import TYPE_CHECKING, Any

import asyncpg

from loadtests.cluster.pgsession import ServerSession
from loadtests.cluster.pgstatements import STATEMENTS, Row, Statement

if TYPE_CHECKING:
    from loadtests.cluster.postgres import FakePostgres

CANCELED = "canceling statement due to statement timeout"
LOST = "connection was closed in the middle of operation"


class Record:
    """A row, by name, number or iteration."""

    __slots__ = ("_row",)

    def __init__(self, row: Row) -> None:
        self._row = row

    def __getitem__(self, key: str | int) -> Any:
        return list(self._row.values())[key] if isinstance(key, int) else self._row[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._row.values())

    def __len__(self) -> int:
        return len(self._row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._row == other._row

    def __repr__(self) -> str:
        return f"<Record {self._row}>"

    def keys(self) -> KeysView[str]:
        return self._row.keys()


class Exchange:
    __slots__ = ("answer", "arguments", "over", "sql", "statement", "timer")

    def __init__(self, answer: asyncio.Future[tuple[str, list[Row]]], sql: str, arguments: tuple[object, ...]) -> None:
        self.answer = answer
        self.sql = sql
        self.arguments = arguments
        self.statement: Statement | None = STATEMENTS.get(sql)
        self.over = False  # done, cancelled or lost: the server does no more for it
        self.timer: asyncio.TimerHandle | None = None  # until the server cancels it

    def end(self) -> None:
        self.over = True
        if self.timer is not None:
            self.timer.cancel()


class FakeConnection:
    def __init__(
        self,
        server: FakePostgres,
        loop: asyncio.AbstractEventLoop,
        client: asyncio.AbstractEventLoop,
        application: str,
    ) -> None:
        self.application = application
        self.client = client
        self._loop = loop  # the server's
        self._server = server
        self._session = ServerSession(server.tables, server.released)
        self._exchange: Exchange | None = None
        self._in_transaction = False  # as of the last answer
        self._listeners: list[Callable[[Any], object]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<FakeConnection {self.application}{' closed' if self._closed else ''}>"

    async def execute(self, sql: str, *arguments: object) -> str:
        return (await self._exchanged(sql, arguments))[0]

    async def fetch(self, sql: str, *arguments: object) -> list[Record]:
        return [Record(row) for row in (await self._exchanged(sql, arguments))[1]]

    async def fetchrow(self, sql: str, *arguments: object) -> Record | None:
        rows = await self.fetch(sql, *arguments)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *arguments: object) -> Any:
        row = await self.fetchrow(sql, *arguments)
        return None if row is None else row[0]

    def is_closed(self) -> bool:
        return self._closed

    def is_in_transaction(self) -> bool:
        return self._in_transaction

    def add_termination_listener(self, listener: Callable[[Any], object]) -> None:
        self._listeners.append(listener)

    def terminate(self) -> None:
        """Disconnect without a message; the server notices when it can."""
        if not self._closed:
            self._server.when_well(self._session_ends, True)
            self._close()

    async def close(self) -> None:
        self.terminate()

    def lose(self) -> None:
        """The server or the network has ended it."""
        if not self._closed:
            self._session_ends()
            self._close()

    def _session_ends(self) -> None:
        if self._exchange is not None:
            self._exchange.end()
        self._session.end()
        self._server.connections.pop(self, None)

    def _close(self) -> None:
        self._closed = True
        if self._exchange is not None and not self._exchange.answer.done():
            self._exchange.answer.set_exception(asyncpg.ConnectionDoesNotExistError(LOST))
        for listener in self._listeners:
            self.client.call_soon(listener, self)

    async def _exchanged(self, sql: str, arguments: tuple[object, ...]) -> tuple[str, list[Row]]:
        if self._closed:
            raise asyncpg.InterfaceError("connection is closed")
        if self._exchange is not None:
            raise asyncpg.InterfaceError("cannot perform operation: another operation is in progress")
        exchange = self._exchange = Exchange(self.client.create_future(), sql, arguments)
        self._later(self._server.round_trip_s / 2, lambda: self._arrive(exchange), True)
        try:
            return await exchange.answer
        except asyncio.CancelledError:
            self._give_up(exchange)
            raise
        finally:
            self._exchange = None

    def _give_up(self, exchange: Exchange) -> None:
        """Send a cancel request, executed when the server can."""

        def cancel() -> None:
            if not exchange.over:
                exchange.end()
                self._session.fail()
                self._in_transaction = self._session.transaction is not None

        self._server.when_well(cancel, True)

    def _arrive(self, exchange: Exchange) -> None:
        if exchange.over:
            return
        self._server.statements += 1
        if exchange.statement is None:
            self._carry_out(exchange)
            return
        limit_s = self._session.limit_s
        if limit_s < math.inf:
            exchange.timer = self._later(limit_s, lambda: self._time_is_up(exchange), False)
        if self._server.query_s >= limit_s:
            return
        if self._server.query_s > 0:
            self._later(self._server.query_s, lambda: self._carry_out(exchange), False)
        else:
            self._carry_out(exchange)

    def _time_is_up(self, exchange: Exchange) -> None:
        if not exchange.over:
            self._fail(exchange, asyncpg.QueryCanceledError(CANCELED))

    def _carry_out(self, exchange: Exchange) -> None:
        """Execute the statement when no other session writes to the tenant."""
        if exchange.over:
            return
        statement = exchange.statement
        if statement is not None and self._session.waits_for(statement) is not None:
            self._server.bury_the_dead()
        if statement is not None and (tenant := self._session.waits_for(statement)) is not None:
            queue = self._server.waiting.setdefault(tenant, deque())
            queue.append(lambda: self._loop.call_soon(self._come_to_turn, exchange, tenant))
            return
        try:
            answer = self._answer(exchange)
        except Exception as error:  # of PostgreSQL, `UnknownStatement`, or a bug of the fake: passed to the caller
            self._fail(exchange, error)
        else:
            self._reply(exchange, answer)

    def _come_to_turn(self, exchange: Exchange, tenant: str) -> None:
        """If the exchange was cancelled meanwhile, the next writer starts."""
        if exchange.over:
            self._server.released(tenant)
        else:
            self._server.when_well(lambda: self._carry_out(exchange), False)

    def _answer(self, exchange: Exchange) -> tuple[str, list[Row]]:
        statement, sql = exchange.statement, exchange.sql
        if statement is None:
            if exchange.arguments or sql.lstrip().startswith("SELECT"):
                rows = self._session.special(sql, exchange.arguments)
                return f"SELECT {len(rows)}", rows
            return self._session.script(sql), []
        if self._server.fails is not None:
            raise self._server.fails("as it was told to")
        as_if = self._server.another(str(exchange.arguments[0])) if statement.searches else None
        rows = self._session.run(statement, exchange.arguments, as_if=as_if)
        return f"{statement.verb} {len(rows)}", self._server.lied(statement, sql, rows)

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        self._session.fail()
        self._reply(exchange, error)

    def _reply(self, exchange: Exchange, result: tuple[str, list[Row]] | Exception) -> None:
        exchange.end()
        in_transaction = self._session.transaction is not None

        def deliver() -> None:
            self._in_transaction = in_transaction
            if exchange.answer.done():
                return
            if isinstance(result, Exception):
                exchange.answer.set_exception(result)
            else:
                exchange.answer.set_result(result)

        self._later(self._server.round_trip_s / 2, deliver, True)

    def _later(self, delay_s: float, act: Callable[[], None], on_the_wire: bool) -> asyncio.TimerHandle:
        """Call `act` later, at the server or after the network."""
        return self._loop.call_later(delay_s, self._server.when_well, act, on_the_wire)
