"""One warm stack for every test that needs one; each test finds it whole, whatever the one before has broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.cli.postgres import EmbeddedPostgres
from services.cli.valkey import EmbeddedValkey
from services.retrieval.minilm import ModelUnusable, find_model
from tests.real.stack.stand import Stand


@pytest.fixture(scope="session")
def warm_stand(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, redis: EmbeddedValkey
) -> Iterator[Stand]:
    try:
        find_model()
    except ModelUnusable as error:
        pytest.skip(str(error))
    if not postgres.running:
        postgres.start()
    if not redis.running:
        redis.start()
    stand = Stand(tmp_path_factory.mktemp("stand"), postgres, redis)
    try:
        stand.start()
        yield stand
    finally:
        stand.stop()


@pytest.fixture
def stand(warm_stand: Stand) -> Iterator[Stand]:
    """The stack, whole; afterwards no part may have logged a fault of its own."""
    warm_stand.restore()
    before = set(warm_stand.faults())
    yield warm_stand
    assert [fault for fault in warm_stand.faults() if fault not in before] == []
