"""At its start the service says what its model and the database make of each other: over a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from services.retrieval import __main__ as program
from services.retrieval import compatibility as module
from services.retrieval.compatibility import CompatibilityCheck, IncompatibleModel
from services.retrieval.database import Session, connect
from services.retrieval.pool import ConnectionPool
from services.runtime.settings import EXIT_BAD_SETTINGS
from tests.retrieval.fakes import FakeEmbedder, Lines
from tests.retrieval.models import variant
from tests.retrieval.test_reembed import LIMIT_S, OLD, put

WARNING = "chunks were not embedded by this model and are not found"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that the machine holds up is given up, and made again later; here it is made."""
    monkeypatch.setattr(module, "QUERY_TIMEOUT_S", LIMIT_S)


class Told:
    """Reached when told so."""

    reached = False


def looking(
    url: str, model: str, scenario: Callable[[CompatibilityCheck, Told, ConnectionPool[Session]], Awaitable[None]]
) -> list[str]:
    """What was logged, each as its message, over a database with five chunks of two tenants."""
    lines, told = Lines(), Told()

    async def session() -> Session:
        return Session(await connect(url, timeout_s=LIMIT_S, application="test"), pooled=True)

    async def main() -> None:
        for tenant, chunks in (("ada", 2), ("ben", 3)):
            writer = await session()
            await put(writer.connection, tenant, "a.md", chunks)
            writer.terminate()
        pool = ConnectionPool(session, size=1, max_waiting=8, log=Lines().log, chance=random.Random(1))
        pool.start()
        while not pool.open:
            await asyncio.sleep(0.02)
        compatibility = CompatibilityCheck(FakeEmbedder(fingerprint=model, name="chosen"), pool, told, lines.log)
        try:
            await scenario(compatibility, told, pool)
        finally:
            await compatibility.stop()
            await pool.stop()

    asyncio.run(main())
    said = lines.read()
    return [json.dumps(json.loads(line), sort_keys=True) for line in said.splitlines()]


@pytest.mark.parametrize("reached_at_start", [True, False])
def test_chunks_that_this_model_has_not_embedded_are_a_warning_with_what_to_do(
    postgres_url: str, reached_at_start: bool
) -> None:
    async def scenario(compatibility: CompatibilityCheck, told: Told, pool: ConnectionPool[Session]) -> None:
        told.reached = reached_at_start
        await compatibility.start()
        told.reached = True
        async with asyncio.timeout(LIMIT_S):
            while not compatibility.done:
                await asyncio.sleep(0.02)
        assert pool.in_use == 0 or pool.open == 1

    (said,) = looking(postgres_url, "another model", scenario)
    line = json.loads(said)
    assert (line["level"].lower(), line["event"]) == ("warning", WARNING)
    assert (line["chunks"], line["tenants"], line["remedy"]) == (5, 2, "weir ingest --reembed")


def test_a_model_that_has_embedded_everything_is_not_worth_a_line(postgres_url: str) -> None:
    async def scenario(compatibility: CompatibilityCheck, told: Told, pool: ConnectionPool[Session]) -> None:
        told.reached = True
        await compatibility.start()
        assert compatibility.done

    assert looking(postgres_url, OLD, scenario) == []


def test_how_many_chunks_lack_a_vector_is_counted_again_and_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECHECK_EVERY_S", 0.05)

    async def scenario(compatibility: CompatibilityCheck, told: Told, pool: ConnectionPool[Session]) -> None:
        assert math.isnan(compatibility.unembedded_chunks)  # not 0: nobody has looked
        told.reached = True
        await compatibility.start()
        assert compatibility.unembedded_chunks == 0
        writer = await connect(postgres_url, timeout_s=LIMIT_S, application="test")
        await put(writer, "eve", "b.md", 4, model="an older model")
        async with asyncio.timeout(LIMIT_S):
            while compatibility.unembedded_chunks != 4:
                await asyncio.sleep(0.02)
        await writer.close()

    (said,) = looking(postgres_url, OLD, scenario)
    assert (json.loads(said)["event"], json.loads(said)["chunks"]) == (WARNING, 4)


@pytest.mark.parametrize("reached_at_start", [True, False])
def test_vectors_of_another_size_end_the_start_or_are_an_error_as_soon_as_they_are_seen(
    postgres_url: str, reached_at_start: bool
) -> None:
    async def scenario(compatibility: CompatibilityCheck, told: Told, pool: ConnectionPool[Session]) -> None:
        other = await connect(postgres_url, timeout_s=LIMIT_S, application="test")
        await other.execute("ALTER TABLE vectors DROP COLUMN embedding; ALTER TABLE vectors ADD embedding halfvec(768)")
        await other.close()
        told.reached = reached_at_start
        if reached_at_start:
            with pytest.raises(IncompatibleModel, match="chosen makes vectors of 384 numbers, and this database holds"):
                await compatibility.start()
            return
        await compatibility.start()
        told.reached = True
        async with asyncio.timeout(LIMIT_S):
            while not compatibility.done:
                await asyncio.sleep(0.02)

    said = looking(postgres_url, OLD, scenario)
    assert IncompatibleModel.exit_status == EXIT_BAD_SETTINGS
    assert len(said) == (0 if reached_at_start else 1)
    assert all(
        "the model does not match the database: no search can succeed" in line
        and "set EMBED_MODEL_PATH to a model that fits" in line
        for line in said
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"config.json": {"hidden_size": 768}},
            "hidden_size is 768, and the database's column",
        ),
        ({"sentence_bert_config.json": {"max_seq_length": 128}}, "CHUNK_TOKENS is 200, and the model in"),
    ],
)
def test_a_model_that_cannot_be_used_ends_the_program_before_anything_else(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    said: str,
) -> None:
    monkeypatch.setenv("EMBED_MODEL_PATH", str(variant(model, tmp_path, changes)))
    monkeypatch.setenv("POSTGRES_URL", "postgresql://nobody@127.0.0.1:1/none")
    assert program.main() == EXIT_BAD_SETTINGS
    assert said in capsys.readouterr().err
