"""Each sentence of the contract twice: over the fake, where no kernel is asked, and over the real server."""

from __future__ import annotations

import pytest

from tests.contract.stages import CacheStage, DatabaseStage, FakeCache, FakeDatabase, RealCache, RealDatabase
from tests.retrieval.corpus import as_service

BOTH = ["fake", pytest.param("real", marks=pytest.mark.sockets)]


@pytest.fixture(params=BOTH)
def cache(request: pytest.FixtureRequest) -> CacheStage:
    """A Valkey."""
    if request.param == "fake":
        return FakeCache()
    return RealCache(request.getfixturevalue("redis"), request.getfixturevalue("redis_url"))


@pytest.fixture(params=BOTH)
def database(request: pytest.FixtureRequest) -> DatabaseStage:
    """A PostgreSQL."""
    if request.param == "fake":
        return FakeDatabase()
    return RealDatabase(as_service(request.getfixturevalue("postgres_url")))
