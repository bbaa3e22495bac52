"""Sessions that replace lost ones are warm before anyone has them, in a whole service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from services.retrieval.warming import Warming
from tests.real.retrieval.test_retrieval_service import GENEROUS_MS, Client, serve
from tests.retrieval.corpus import RIVER, settings_for, take_in, write


def test_sessions_that_replace_lost_ones_have_prepared_the_search_before_anyone_has_them(
    postgres_url: str, redis_url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[list[str]] = []
    as_it_is = Warming.warm

    async def watched(self: Warming, session: Any) -> None:
        await as_it_is(self, session)
        rows = await session.connection.fetch("SELECT statement FROM pg_prepared_statements")
        prepared.append([row["statement"] for row in rows])

    monkeypatch.setattr(Warming, "warm", watched)
    settings = settings_for(postgres_url, redis_url, retrieval_budget_ms=GENEROUS_MS, cache_ttl_s=0)
    asyncio.run(take_in(settings, write(tmp_path, river_md=RIVER)))
    lose_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'weir-retrieval'"

    async def scenario(client: Client) -> None:
        await client.until_ready()
        at_start = len(prepared)
        root = await asyncpg.connect(postgres_url)
        await root.execute(f"{lose_all} AND datname = current_database()")
        await root.close()

        async def replaced() -> bool:
            return len(prepared) >= at_start + settings.postgres_pool_size

        await client.until(replaced)
        assert all(any("vectors" in statement for statement in each) for each in prepared[at_start:])
        await client.until_ready()
        assert (await client.retrieve("gates"))["results"]

    serve(settings, model, scenario)
