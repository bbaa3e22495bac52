"""No tenant is ever given what is another's, however it asks.

How many probes there are is set by LEAK_PROBES; 10,000 of them take some minutes.

One tenant has canaries: documents that nobody else has, each with a word that nothing else contains. It asks about
them, so that they lie in every cache, the semantic one at its least threshold included. Others then ask in every way,
at the same time as well, and no byte of any answer may be a canary's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from redis.asyncio import Redis

from services.cli.postgres import EmbeddedPostgres
from services.retrieval.app import build
from services.retrieval.cache import PREFIX
from services.retrieval.config import MIN_THRESHOLD, RetrievalSettings
from services.runtime.serve import running
from tests.retrieval.corpus import BREAD, RIVER, settings_for, take_in, unhurried, write

PROBES = int(os.environ.get("LEAK_PROBES", "360"))
AT_ONCE = 12
WITHIN_S = 100 + PROBES / 10

pytestmark = [pytest.mark.timeout(WITHIN_S + 30)]

MARK = "QZXCANARY"
OWNER, RIVAL = "canary", "rival"
SECRETS = {
    f"secret{number}_md": f"# Vault\n\nThe code of vault {number} is {MARK}{number}. A weir holds a river.\n"
    for number in range(8)
}
QUESTIONS = (
    "What is the code of vault 3?",
    "What holds a river?",
    MARK,
    f"{MARK}5",
    "secret3.md#0",
    "secret3.md",
    "Knead the dough",
    "tenant = 'canary'",
    "') OR tenant = 'canary' --",
)
LOOK_ALIKES = (
    "Canary", "CANARY", "canary ", " canary", "canary\n", "canary\t", "canar", "canary2", "canary\u200b",
    "\ufeffcanary", "c\u0430nary", "canar\u0443", "\uff43\uff41\uff4e\uff41\uff52\uff59", "canary\u0301",
    "canary\u00ad",
)  # fmt: skip
CRAFTED = (
    "canary'--", "canary' OR '1'='1", "x' OR tenant = 'canary", "canary'; RESET ROLE; --", "%", "_anary", "canar%", "*",
    "canary,rival", "canary:rival", "rival:canary", "canary/../canary", "../canary", "{canary}", '"canary"', "$1", "\\",
    "canary\\", "canary\\x00", "weir_writer", "postgres", "null", "[]", "0", f"{PREFIX}canary", "weir:*", "true",
    "\r\n", "canary\r\nx-tenant: canary", "c" * 128, "canary" + " " * 122, "🐦" * 32,
)  # fmt: skip
STRANGERS = (RIVAL, *LOOK_ALIKES, *CRAFTED)
OWN = ("date", "content-length", "x-request-id")  # headers whose values are of each answer
SAID = (str, str.upper, str.lower, "  {} ".format)  # the embedder does not know one from another; the exact cache does


class Asked:
    """Probes over HTTP, each answer held against what its tenant may see."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http
        self.sources: Counter[str] = Counter()
        self.headers: Counter[frozenset[str]] = Counter()

    async def owner(self, question: str, **fields: Any) -> dict[str, Any]:
        body = (await self._post(OWNER, question, **fields)).json()
        assert all(passage["doc_id"].startswith("secret") for passage in body["results"])
        return dict(body)

    async def stranger(self, tenant: str, question: str, **fields: Any) -> dict[str, Any]:
        """Ask as someone who has no canary; the answer has none."""
        answer = await self._post(tenant, question, **fields)
        assert MARK.encode() not in answer.content
        assert MARK not in str(answer.headers)
        body: dict[str, Any] = answer.json()
        self.sources[body["source"]] += 1
        self.headers[
            frozenset(f"{name}: {'' if name in OWN else value}" for name, value in answer.headers.items())
        ] += 1
        texts = {passage["text"] for passage in body["results"]}
        if tenant == RIVAL:
            assert body["source"] == "none" or len(body["results"]) == min(fields.get("top_k", 50), 3)
            assert not any("Vault" in text for text in texts)
        else:
            assert not texts
            assert body["source"] in ("db", "none")  # nothing of its own can have been kept
            assert body["age_s"] == 0
        return body

    async def _post(self, tenant: str, question: str, **fields: Any) -> httpx2.Response:
        asked = {"query": question, "tenant": tenant, "top_k": 50, "budget_ms": 60_000, **fields}
        answer = await self._http.post("/retrieve", json=asked)
        assert answer.status_code == 200, answer.text
        return answer


@pytest.fixture
def settings(postgres_url: str, redis_url: str, tmp_path: Path) -> RetrievalSettings:
    """The owner has canaries only; the rival has documents of the same names, and says nothing secret in them."""
    made = unhurried(
        settings_for(postgres_url, redis_url, retrieval_budget_ms=20_000.0, semantic_threshold=MIN_THRESHOLD)
    )
    asyncio.run(take_in(made, write(tmp_path / OWNER, **SECRETS), tenant=OWNER))
    public = write(tmp_path / RIVAL, secret3_md=BREAD, secret5_md=RIVER)
    asyncio.run(take_in(made, public, tenant=RIVAL))
    return made


def probing(
    settings: RetrievalSettings, model: Path, scenario: Callable[[Asked, httpx2.AsyncClient], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with running(build(settings, model)) as process:
            base = f"http://127.0.0.1:{process.bound_port}"
            async with httpx2.AsyncClient(base_url=base, timeout=60) as http, asyncio.timeout(WITHIN_S):
                while (await http.get("/health/ready")).json().get("degraded") != []:
                    await asyncio.sleep(0.02)
                asked = Asked(http)
                for question in QUESTIONS:
                    assert MARK in str(await asked.owner(question))
                while (await asked.owner(QUESTIONS[0]))["source"] != "cache":
                    await asyncio.sleep(0.02)
                await scenario(asked, http)
                assert MARK in str(await asked.owner(QUESTIONS[0]))  # it was there to be had all the time

    asyncio.run(main())


def test_whoever_asks_for_anothers_documents_in_whatever_way_is_given_none(
    settings: RetrievalSettings, model: Path
) -> None:
    chance = Random(6)

    def drawn() -> dict[str, Any]:
        return {
            "top_k": chance.choice((2, 50)),
            "cache_ttl_s": chance.choice((0, 1, 86_400)),
            "hybrid": chance.random() < 0.5,
            "effort": chance.choice((0.1, 1.0)),
        }

    async def scenario(asked: Asked, http: httpx2.AsyncClient) -> None:
        strangers = itertools.cycle(chance.sample(STRANGERS, len(STRANGERS)))
        for _ in range(PROBES // AT_ONCE):
            question, way = chance.choice(SAID)(chance.choice(QUESTIONS)), drawn()
            tenants = [RIVAL, *(next(strangers) for _ in range(AT_ONCE - 1))]
            probes = [asked.stranger(tenant, question, **way) for tenant in tenants]
            probes.insert(chance.randrange(AT_ONCE), asked.owner(question, **way))  # shared, if anything ever is
            await asyncio.gather(*probes)
        assert asked.sources["db"] > PROBES / 2
        assert asked.sources["cache"] > 0  # the rival's own
        assert asked.sources["semantic"] > 0  # and its own, too

    probing(settings, model, scenario)


def test_an_answer_to_a_stranger_has_the_same_headers_and_fields_as_one_to_nobody(
    settings: RetrievalSettings, model: Path
) -> None:
    async def scenario(asked: Asked, http: httpx2.AsyncClient) -> None:
        shapes = set()
        for tenant in ("nobody at all", *LOOK_ALIKES[:4]):
            for question in QUESTIONS:
                body = await asked.stranger(tenant, question)
                shapes.add((body["source"], body["reason"], body["age_s"], tuple(sorted(body))))
        assert len(shapes) == 1
        assert len(asked.headers) == 1, asked.headers

    probing(settings, model, scenario)


def test_entries_of_the_cache_that_are_moved_to_anothers_keys_are_not_believed(
    settings: RetrievalSettings, model: Path, postgres: EmbeddedPostgres
) -> None:
    """Not even as a last resort: the database is down, and whatever is kept would be given out as stale."""
    exact_only = settings.model_copy(update={"semantic_threshold": 0.0})

    async def scenario(asked: Asked, http: httpx2.AsyncClient) -> None:
        async with Redis.from_url(settings.redis_url) as redis:
            theirs = set(await redis.keys("*"))
            for question in QUESTIONS:
                while (await asked.stranger(RIVAL, question))["source"] != "cache":
                    await asyncio.sleep(0.02)
            mine = set(await redis.keys("*")) - theirs
            assert len(mine) >= len(QUESTIONS)
            await asyncio.to_thread(postgres.stop)
            while (stale := await asked.stranger(RIVAL, QUESTIONS[0], cache_ttl_s=0))["source"] != "stale":
                await asyncio.sleep(0.02)
            assert stale["reason"] == "postgres_down"
            for secret in theirs:
                for key in mine:
                    await redis.copy(secret, key, replace=True)
                for question in QUESTIONS:
                    assert (await asked.stranger(RIVAL, question))["source"] == "none"

    probing(exact_only, model, scenario)


def test_the_documents_of_a_tenant_are_neither_listed_nor_removed_for_another(
    settings: RetrievalSettings, model: Path
) -> None:
    async def scenario(asked: Asked, http: httpx2.AsyncClient) -> None:
        for tenant in (RIVAL, *(name for name in STRANGERS if name.isascii() and name.isprintable())):
            headers = {"x-tenant": tenant.strip() if tenant.strip() != OWNER else "nobody"}
            listed = await http.get("/documents", headers=headers)
            ids = [document["id"] for document in listed.json()["documents"]]
            assert ids == (["secret3.md", "secret5.md"] if tenant == RIVAL else [])
            removed = await http.delete("/documents/secret7.md", headers=headers)
            assert (removed.status_code, MARK in removed.text) == (404, False)
        mine = await http.get("/documents", headers={"x-tenant": OWNER})
        assert len(mine.json()["documents"]) == len(SECRETS)

    probing(settings, model, scenario)


@pytest.mark.parametrize("tenant", ["", "c" * 129, "canary\x00", "\x00canary"])
def test_a_tenant_whose_name_cannot_be_one_is_refused(settings: RetrievalSettings, model: Path, tenant: str) -> None:
    async def scenario(asked: Asked, http: httpx2.AsyncClient) -> None:
        answer = await http.post("/retrieve", json={"query": MARK, "tenant": tenant})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tenant"

    probing(settings, model, scenario)
