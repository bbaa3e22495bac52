"""A server-side session of the fake PostgreSQL: settings, roles, transactions and locks.

A script (several statements without arguments) comes from `database._opening`, or is COMMIT or ROLLBACK; each statement
is recognized by its form. Transaction-local state ends with the transaction. A failed transaction accepts only its end,
and COMMIT rolls it back. Outside of a transaction with a role there are no tables, as for the services' own user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncpg

from loadtests.cluster.corpora import Corpus
from loadtests.cluster.pgstatements import Row, Statement, UnknownStatement, View
from services.retrieval import library
from services.retrieval.database import OWNS, POWERS, READER, WRITER
from services.retrieval.nearest import FORCE_GRAPH

SERVICE = "weir_service"
KNOWN_SETTINGS = {"statement_timeout", *FORCE_GRAPH}
MS = re.compile(r"\d+")
_TENANT = re.compile(
    r"SELECT set_config\('weir\.tenant', convert_from\(decode\('([0-9a-f]*)', 'hex'\), 'UTF8'\), true\)"
)
_SET = re.compile(r"SET (LOCAL )?([\w.]+) = (\S+)")
_ROLE = re.compile(r"SET LOCAL ROLE (\w+)")
_SESSION_USER = "SELECT session_user"
_ROLE_OF = "SELECT * FROM pg_roles WHERE rolname = $1"


@dataclass(slots=True)
class Transaction:
    """An open transaction. `changed` is the tenant's corpus after its writes."""

    read_only: bool
    role: str = ""
    tenant: str = ""
    failed: bool = False
    wrote: bool = False
    changed: Corpus | None = None
    settings: dict[str, str] = field(default_factory=dict)


class Tables:
    """Committed corpora by tenant, and each tenant's current writer."""

    def __init__(self, clock_ms: Callable[[], int], dimensions: int) -> None:
        self.corpora: dict[str, Corpus] = {}
        self.writers: dict[str, ServerSession] = {}
        self.clock_ms = clock_ms
        self.dimensions = dimensions


class ServerSession:
    """`released` is called with a tenant that another writer may use now."""

    def __init__(self, tables: Tables, released: Callable[[str], None]) -> None:
        self._tables = tables
        self._released = released
        self._settings: dict[str, str] = {}
        self.transaction: Transaction | None = None

    @property
    def limit_s(self) -> float:
        """The current `statement_timeout` in seconds; infinite for 0."""
        local = self.transaction.settings if self.transaction is not None else {}
        ms = int(local.get("statement_timeout", self._settings.get("statement_timeout", "0")))
        return ms / 1000 if ms else math.inf

    def waits_for(self, statement: Statement) -> str | None:
        """The tenant whose other writer this statement must wait for."""
        transaction = self.transaction
        if not statement.locks or transaction is None or transaction.failed or transaction.read_only:
            return None
        holder = self._tables.writers.get(transaction.tenant)
        return transaction.tenant if holder not in (None, self) else None

    def end(self) -> None:
        """The client disconnected: roll back and release locks."""
        self._finish(commit=False)

    def fail(self) -> None:
        if self.transaction is not None:
            self.transaction.failed = True

    def script(self, script: str) -> str:
        """Execute statements up to the first failure; returns the last command tag."""
        tag = ""
        for statement in script.split("; "):
            tag = self._simple(statement)
        return tag

    def run(self, statement: Statement, arguments: tuple[object, ...], *, as_if: str | None = None) -> list[Row]:
        """Execute a product statement. `as_if` bypasses the row policies, for a lying server: another tenant's rows."""
        self._refuse_in_failed()
        transaction = self.transaction
        if transaction is None or not transaction.role:
            raise asyncpg.InsufficientPrivilegeError("permission denied for table")
        if statement.writes and transaction.read_only:
            raise asyncpg.ReadOnlySQLTransactionError("cannot execute this in a read-only transaction")
        if statement.for_reader and transaction.role != READER:
            raise asyncpg.InsufficientPrivilegeError("permission denied for function")
        _refuse_nul(arguments)
        if as_if is not None:
            return statement.run(self._view(as_if), as_if, *arguments[1:])
        view = self._view(transaction.tenant)
        rows = statement.run(view, *arguments)
        if statement.locks:
            self._tables.writers[transaction.tenant] = self
            transaction.wrote, transaction.changed = True, view.corpus
        return rows

    def _view(self, tenant: str) -> View:
        transaction = self.transaction
        assert transaction is not None
        own = transaction.wrote and tenant == transaction.tenant
        corpus = transaction.changed if own else self._tables.corpora.get(tenant)
        tables = self._tables
        return View(tenant, corpus, tables.corpora, tables.clock_ms(), transaction.settings, tables.dimensions)

    def special(self, sql: str, arguments: tuple[object, ...]) -> list[Row]:
        """Statements without tables: the current user, and `library`'s checks of a server."""
        self._refuse_in_failed()
        if sql == _SESSION_USER:
            return [{"session_user": SERVICE}]
        if sql == _ROLE_OF:
            return [{"rolname": arguments[0], **dict.fromkeys(POWERS, False)}]
        if sql == OWNS:
            return [{"count": 0}]
        if sql == library.NOTICE:
            return [{"set_config": str(library.NOTICED_MS)}]
        raise UnknownStatement(sql)

    def _refuse_in_failed(self) -> None:
        if self.transaction is not None and self.transaction.failed:
            raise asyncpg.InFailedSQLTransactionError(
                "current transaction is aborted, commands ignored until end of transaction block"
            )

    def _simple(self, statement: str) -> str:
        if statement in ("COMMIT", "ROLLBACK"):
            return self._finish(commit=statement == "COMMIT")
        self._refuse_in_failed()
        if statement in ("BEGIN", "BEGIN READ ONLY"):
            self.transaction = self.transaction or Transaction(statement != "BEGIN")
            return "BEGIN"
        if named := _TENANT.fullmatch(statement):
            return self._name(bytes.fromhex(named[1]))
        if role := _ROLE.fullmatch(statement):
            return self._become(role[1])
        if setting := _SET.fullmatch(statement):
            return self._set(setting[2], setting[3], local=bool(setting[1]))
        raise UnknownStatement(statement)

    def _finish(self, *, commit: bool) -> str:
        transaction, self.transaction = self.transaction, None
        if transaction is None:
            return "COMMIT" if commit else "ROLLBACK"  # PostgreSQL adds a warning
        stays = commit and not transaction.failed
        if transaction.wrote and stays and transaction.changed is not None:
            self._tables.corpora[transaction.tenant] = transaction.changed
        if self._tables.writers.get(transaction.tenant, self) is self:  # or no session is the writer
            self._tables.writers.pop(transaction.tenant, None)
            self._released(transaction.tenant)
        return "COMMIT" if stays else "ROLLBACK"

    def _name(self, tenant: bytes) -> str:
        if b"\0" in tenant:
            raise asyncpg.CharacterNotInRepertoireError('invalid byte sequence for encoding "UTF8": 0x00')
        self._in_transaction().tenant = tenant.decode()
        return "SELECT 1"

    def _become(self, role: str) -> str:
        if role not in (READER, WRITER):
            raise asyncpg.InvalidParameterValueError(f'role "{role}" does not exist')
        self._in_transaction().role = role
        return "SET"

    def _set(self, name: str, value: str, *, local: bool) -> str:
        if name not in KNOWN_SETTINGS and "." not in name:
            raise asyncpg.UndefinedObjectError(f'unrecognized configuration parameter "{name}"')
        if name == "statement_timeout" and not MS.fullmatch(value):
            raise asyncpg.InvalidParameterValueError(f'invalid value for parameter "{name}": "{value}"')
        settings: dict[str, str] = self._in_transaction().settings if local else self._settings
        settings[name] = value
        return "SET"

    def _in_transaction(self) -> Transaction:
        """Outside of a transaction, local settings are dropped at once."""
        return self.transaction or Transaction(read_only=True)


def _refuse_nul(arguments: tuple[object, ...]) -> None:
    for argument in arguments:
        texts = argument if isinstance(argument, list) else [argument]
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise asyncpg.CharacterNotInRepertoireError('invalid byte sequence for encoding "UTF8": 0x00')
