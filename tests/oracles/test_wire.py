"""What goes over the wire is as it is pinned, and everything that can be said there is said in a transcript."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import compile_path

from loadtests.cluster.loop import run
from loadtests.storm import app as storm
from loadtests.storm.config import StormSettings
from services.core.outcome import Outcome
from services.desk import app as desk
from services.desk.config import DeskSettings
from services.governor import reply
from services.retrieval import app as retrieval
from services.retrieval.config import RetrievalSettings
from services.router import app as router
from services.router.config import RouterSettings
from services.router.deciding.refusing import SAY
from services.runtime.errors import REFUSALS
from services.runtime.service import Service
from services.worker import app as worker
from services.worker.config import WorkerSettings
from tests.oracles.oracle import difference, told
from tests.oracles.wire.transcript import masked, written
from tests.oracles.wire.transcripts import MADE_BY, OPENAPI, ORACLE, text_of

SERVICES = Path(router.__file__).parents[1]
BARE: dict[str, Any] = {"_env_file": None}
CODE = re.compile(r'\bcode ?= ?"([a-z_]+)"')
REASON = re.compile(r'\breason="([a-z_]+)"')

NOT_ON_THE_WIRE = {
    "served",  # an outcome, and no refusal
    "fresh", "similar", "retrieval_timeout", "retrieval_unavailable",  # why a result is what it is, for logs and spans
}  # fmt: skip
NOT_BROUGHT_ABOUT = {"platform_cost", "conflict"}
"""No setting bounds the cost of all that waits: tests/core tells it. Several router processes answer `conflict`."""
GOVERNORS_NOT_BROUGHT_ABOUT = {"missing_payload", "too_many_bytes", "peer_gone"}
"""Told by tests/governor."""


@pytest.mark.parametrize("file", [*MADE_BY, OPENAPI])
def test_the_wire_is_as_it_is_pinned(file: str) -> None:
    before, after = ORACLE.pinned(file), text_of(file)
    if before != after:
        pytest.fail("\n" + told("wire", [difference(before, after, f"wire/{file}")], ORACLE.rewrite), pytrace=False)


@pytest.fixture(scope="module")
def pinned() -> str:
    """All transcripts."""
    return "".join(ORACLE.pinned(file) for file in MADE_BY)


def test_every_pinned_transcript_is_made(pinned: str) -> None:
    assert {path.name for path in ORACLE.folder.iterdir()} == {*MADE_BY, OPENAPI}


def application_of(listener: Any) -> FastAPI:
    assert isinstance(listener.app, Service)
    return listener.app.api


def routes_of(api: FastAPI) -> set[tuple[str, str]]:
    """(METHOD, path) of every route that the description lists."""
    listed = [route for route in api.routes if isinstance(route, APIRoute) and route.include_in_schema]
    return {(method, route.path) for route in listed for method in route.methods}


def test_every_route_of_every_service_is_asked_in_a_transcript(pinned: str) -> None:
    asked = set(re.findall(r"^~?> ([A-Z]+) (\S+) HTTP/1\.1", pinned, re.MULTILINE))

    def is_asked(method: str, path: str) -> bool:
        pattern = compile_path(path)[0]
        return any(how == method and pattern.match(where.partition("?")[0]) for how, where in asked)

    served = [
        router.build(RouterSettings(**BARE)),
        retrieval.build(RetrievalSettings(**BARE), Path()),
        worker.build(WorkerSettings(**BARE)),
        desk.build(DeskSettings(**BARE, desk_servers="vllm-a=2")),
        storm.build(StormSettings(**BARE)),
    ]
    operator: Any = served[0].metrics
    applications = [*(application_of(process.listener) for process in served), operator._others._application]
    assert sorted({route for api in applications for route in routes_of(api) if not is_asked(*route)}) == []


def test_every_refusal_is_told_in_a_transcript(pinned: str) -> None:
    assert set(REFUSALS) == set(Outcome) - {Outcome.SERVED}
    product = [path for path in SERVICES.rglob("*.py") if path.relative_to(SERVICES).parts[0] != "cli"]
    source = "".join(path.read_text(encoding="utf-8") for path in product)
    known = NOT_ON_THE_WIRE | NOT_BROUGHT_ABOUT
    codes = {*map(str, REFUSALS), *CODE.findall(source)} - known
    reasons = {*SAY, *REASON.findall(source)} - known
    assert sorted(code for code in codes if f'"code":"{code}"' not in pinned) == []
    assert sorted(reason for reason in reasons if f'"reason":"{reason}"' not in pinned) == []
    assert sorted(each for each in NOT_BROUGHT_ABOUT if f'"{each}"' in pinned) == [], "it is: take it off the list"


def test_every_reply_of_the_governor_is_told_in_a_transcript(pinned: str) -> None:
    needs = {each.need for each in vars(reply).values() if isinstance(each, reply.ReplyTemplate) and each.need}
    missing = {need for need in needs if f'"need_code":"{need}"' not in pinned}
    assert missing == GOVERNORS_NOT_BROUGHT_ABOUT


def test_a_transcript_shows_every_byte() -> None:
    assert written(b"GET / HTTP/1.1\r\nhost: t\r\n\r\nhi") == ["GET / HTTP/1.1", "host: t", "", "hi \\"]
    assert written(b"one\ntwo\x00\xff\r\n") == ["one\\n", "two\\x00\\xff"]
    assert written(b"x" * 100) == ["{x * 100} \\"]


def test_only_the_right_date_and_an_id_that_was_made_here_are_masked() -> None:
    answer = b'HTTP/1.1 200 OK\r\ndate: %b\r\nx-request-id: %b\r\n\r\n{"id":"%b","created":%b}'
    right, wrong = b"Thu, 01 Jan 1970 00:01:40 GMT", b"Thu, 01 Jan 1970 00:01:41 GMT"
    id = b"0123456789ab-1f"
    assert masked(answer % (right, id, id, b"100"), 100) == answer % (b"<date>", b"<id>", b"<id>", b"<created>")
    unchanged = answer % (wrong, b"mine-1", b"mine-1", b"101")
    assert masked(unchanged, 100) == unchanged


def test_a_transcript_is_the_same_whatever_was_made_before() -> None:
    assert run(MADE_BY["worker-with-token.txt"]()) == run(MADE_BY["worker-with-token.txt"]())
