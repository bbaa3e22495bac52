"""`/console/storm` is passed on to the bench, bounded, and is not there where it must not be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from services.router.config import RouterSettings
from services.router.console import storm
from services.router.console.storm import MAX_BODY_BYTES, storm_routes
from services.runtime.http import Exchange, Handler
from tests.router.rig import FakeWorker, answer, error_of, standing
from tests.runtime.rig import serving
from tests.virtual import run

WRITE = {"x-weir-console": "1"}


@dataclass
class FakeBench:
    """Says what it was asked, or does not."""

    stall: bool = False
    body: bytes = b"{}"
    asked: list[tuple[str, str, bytes, bytes | None]] = field(default_factory=list)

    def routes(self) -> dict[tuple[str, str], Handler]:
        paths = [
            ("GET", "/storm"),
            ("POST", "/storm"),
            ("DELETE", "/storm"),
            ("GET", "/storm/run"),
            ("GET", "/storm/report"),
        ]
        return dict.fromkeys(paths, self.handle)

    async def handle(self, exchange: Exchange) -> None:
        target = exchange.path + ("?" + exchange.query.decode() if exchange.query else "")
        self.asked.append((exchange.method, target, exchange.body, exchange.header(b"origin")))
        assert exchange.header(b"x-weir-console") == b"1"
        if self.stall:
            await asyncio.Event().wait()
        html = exchange.path == "/storm/report"
        headers = [(b"content-security-policy", b"default-src 'none'"), (b"set-cookie", b"a=b")]
        content_type = b"text/html; charset=utf-8" if html else b"application/json"
        await exchange.reply(
            202 if exchange.method == "POST" else 200, self.body, content_type=content_type, headers=headers
        )


@asynccontextmanager
async def before(bench: FakeBench) -> AsyncIterator[httpx2.AsyncClient]:
    """The client of a router before this bench."""
    async with serving(bench.routes(), drain_timeout_s=0.2) as process:
        url = f"http://127.0.0.1:{process.bound_port}"
        async with standing(FakeWorker(answer), storm_url=url) as stand:
            yield stand.client


def test_what_is_asked_is_passed_on_and_what_is_said_comes_back():
    async def main() -> None:
        bench = FakeBench()
        async with before(bench) as client:
            own = str(client.base_url)
            body = b'{"scenario":"burst"}'
            assert (await client.get("/console/storm")).json() == {}
            started = await client.post("/console/storm", content=body, headers={**WRITE, "origin": own.rstrip("/")})
            assert started.status_code == 202
            assert (await client.delete("/console/storm", headers=WRITE)).status_code == 200
            page = await client.get("/console/storm/report?run=a1&with=b2&save=1")
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert page.headers["content-security-policy"] == "default-src 'none'"
            assert "set-cookie" not in page.headers
            await client.get("/console/storm/run?run=a1")
        assert bench.asked == [
            ("GET", "/storm", b"", None),
            ("POST", "/storm", body, None),
            ("DELETE", "/storm", b"", None),
            ("GET", "/storm/report?run=a1&with=b2&save=1", b"", None),
            ("GET", "/storm/run?run=a1", b"", None),
        ]

    run(main)


def test_no_other_page_begins_a_storm():
    async def main() -> None:
        bench = FakeBench()
        async with before(bench) as client:
            for headers in ({}, {**WRITE, "origin": "http://evil.example"}):
                assert (await client.post("/console/storm", content=b"{}", headers=headers)).status_code == 403
                assert (await client.delete("/console/storm", headers=headers)).status_code == 403
        assert bench.asked == []

    run(main)


def test_a_bench_that_is_gone_is_told_so_and_what_to_do():
    async def main() -> None:
        async with standing(FakeWorker(answer), storm_url="http://127.0.0.1:1") as stand:
            reply = await stand.client.get("/console/storm")
            assert (reply.status_code, error_of(reply)["code"]) == (503, "storm_gone")
            assert "loadtests.storm" in error_of(reply)["message"]
            assert (await stand.chat()).status_code == 200

    run(main)


def test_a_bench_that_says_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storm, "WITHIN_S", 0.05)

    async def main() -> None:
        async with before(FakeBench(stall=True)) as client:
            reply = await client.get("/console/storm")
            assert (reply.status_code, error_of(reply)["code"]) == (503, "storm_gone")

    run(main)


def test_wishes_and_answers_have_a_size():
    async def main() -> None:
        bench = FakeBench(body=b" " * (storm.MAX_ANSWER_BYTES + 1))
        async with before(bench) as client:
            long = await client.post("/console/storm", content=b" " * (MAX_BODY_BYTES + 1), headers=WRITE)
            assert long.status_code == 413
            assert bench.asked == []
            assert (await client.get("/console/storm")).status_code == 503

    run(main)


def test_without_a_bench_or_with_tenants_there_is_no_route(tmp_path: Path):
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text((Path(__file__).parents[3] / "tenants.example.yaml").read_text())
    bare = RouterSettings(_env_file=None)
    guarded = RouterSettings(_env_file=None, storm_url="http://127.0.0.1:8090", tenants_file=tenants)
    assert storm_routes(bare) == storm_routes(guarded) == {}

    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            assert (await stand.client.get("/console/storm")).status_code == 404

    run(main)
