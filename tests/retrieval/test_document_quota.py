"""What a tenant may keep, and how the places of those who write are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.retrieval import documentsapi
from services.retrieval.documentsapi import SLOW_FOR_S, SLOW_S, DocumentBounds, DocumentsApi
from services.retrieval.preparing import PreparedDocument
from services.retrieval.writing import Quota, Used
from services.runtime.errors import BadInput, Refused
from tests.virtual import run

LIMIT_S = 20.0
VECTOR = np.full(384, 0.05, np.float32)
ROOM = Quota(1000, 1_000_000)
NOTHING = Used(0, 0)


@dataclass
class Given:
    """A PUT, as far as the API looks at it."""

    headers: dict[bytes, bytes]
    body: bytes = b'{"text": "x"}'
    log: dict[str, object] = field(default_factory=dict)
    task: asyncio.Task[Any] | None = None

    def header(self, name: bytes) -> bytes | None:
        return self.headers.get(name)

    def on_gone(self, callback: Callable[[], object]) -> None:
        pass


class Embedder:
    """Is warm, and embeds at once."""

    warm, fingerprint, tokenizer = True, "model", "tokenizer"

    async def embed(self, texts: list[str]) -> Any:
        return type("Embedded", (), {"vectors": np.stack([VECTOR] * len(texts))})


class Shelf:
    """A library that holds nothing, and counts what is written."""

    def __init__(self, used: Used) -> None:
        self.kept = used
        self.written: list[str] = []

    async def held(self, *_: object) -> None:
        return None

    async def used(self, *_: object) -> Used:
        return self.kept

    async def put(self, tenant: str, doc_id: str, *_: object) -> int:
        self.written.append(doc_id)
        return 1


class Desk:
    """The API over fakes, with a parser that takes as long as the document's id says, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, used: Used = NOTHING, quota: Quota = ROOM) -> None:
        self.shelf, self.parsed = Shelf(used), 0

        async def prepare(_: Path, ask: Any) -> PreparedDocument:
            self.parsed += 1
            await asyncio.sleep(float(Path(ask.name).stem))
            return PreparedDocument("t", "h", ["x"])

        monkeypatch.setattr(documentsapi, "prepare", prepare)
        bounds = DocumentBounds(10_000, 4, 200, 30, 60.0, quota)
        self.api = DocumentsApi(self.shelf, Embedder(), Path(), bounds, learn=lambda *_: None)  # type: ignore[arg-type]

    async def put(self, tenant: str, seconds: float, **headers: bytes) -> int:
        """Its status, or that of its refusal."""
        more = {name.replace("_", "-").encode(): value for name, value in headers.items()}
        given = Given({b"x-tenant": tenant.encode(), **more}, task=asyncio.current_task())
        try:
            answer = await self.api.put(given, f"{seconds}.txt")  # type: ignore[arg-type]
        except (Refused, BadInput) as refusal:
            return refusal.status
        return answer.status_code


def test_tenants_whose_documents_take_long_leave_a_place_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch)
        for tenant in ("slow", "slower"):
            assert await desk.put(tenant, SLOW_S + 7) == 201
        first = asyncio.ensure_future(desk.put("slow", 10))
        await asyncio.sleep(1)
        assert await desk.put("slower", 10) == 429
        for quick in ("a", "b", "c"):
            assert await desk.put(quick, 0.5) == 201
        assert await first == 201
        await asyncio.sleep(SLOW_FOR_S + 1)
        both = await asyncio.gather(desk.put("slow", 1), desk.put("slower", 1))
        assert both == [201, 201]

    run(main())


def test_a_tenant_without_room_for_one_more_is_refused_before_its_document_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        for used in (Used(1000, 0), Used(0, 1_000_000)):
            desk = Desk(monkeypatch, used)
            assert await desk.put("a", 0) == 403
            assert (desk.parsed, desk.shelf.written) == (0, [])

    run(main())


def test_the_routers_word_stands_above_the_usual_quota_and_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        desk = Desk(monkeypatch, Used(10, 100))
        assert await desk.put("a", 0, x_documents_count=b"10") == 403
        assert await desk.put("a", 0, x_documents_bytes=b"100") == 403
        assert await desk.put("a", 0, x_documents_count=b"11", x_documents_bytes=b"101") == 201
        for wrong in (b"", b"-1", b"1e9", b"9" * 20):
            assert await desk.put("a", 0, x_documents_count=wrong) == 400

    run(main())
