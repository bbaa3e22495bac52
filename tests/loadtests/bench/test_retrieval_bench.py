"""Retrieval's bench: what it asks, what it counts, and what its page says of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from loadtests.bench.retrieval import load
from loadtests.bench.retrieval.bench import Options, result
from loadtests.bench.retrieval.corpus import TOO_COMMON, Prose, questions
from loadtests.bench.retrieval.faults import CONDITIONS
from loadtests.bench.retrieval.load import KNOWN, NEW, REFRESHED, Questions, Reply, Seen, offered
from loadtests.bench.retrieval.measure import BOUND_MS, Line, figures, note, source_of
from loadtests.bench.retrieval.service import Precomputed
from loadtests.report.figure import Figure
from loadtests.report.result import markdown, write
from tests.loadtests.load.scripted import steadily

SOURCES = {KNOWN: "cache", REFRESHED: "stale", NEW: "db"}


def seen(ms: list[float], *, unanswered: int = 0, late_ms: float = 0.1) -> Seen:
    taken = [*ms, *[math.inf] * unanswered]
    sources = Counter(db=len(ms))
    return Seen(len(taken), unanswered, taken, [late_ms] * len(taken), sources, Counter(postgres_down=1))


def test_no_two_questions_are_the_same_and_all_are_of_the_corpus_own_words():
    asked = list(itertools.islice(questions(), 300))
    assert len(set(asked)) == 300
    corpus = set(Prose(1).text(500_000).split())
    known = [word in corpus for question in asked for word in question.split()[:-1]]
    assert sum(known) > 0.95 * len(known)


def test_words_are_as_unequal_as_in_a_language():
    counts = [count for _, count in Counter(Prose(1).text(500_000).split()).most_common()]
    assert counts[TOO_COMMON] == pytest.approx(counts[0] / 2, rel=0.2)
    assert counts[0] < 0.002 * 500_000, "none is in every chunk"


def test_a_question_has_the_same_vector_each_time_and_another_question_another():
    vectors = np.arange(4096 * 384, dtype=np.float32).reshape(4096, 384)
    model = Precomputed(vectors, "name of a model")

    async def main() -> None:
        assert (await model.load()).fingerprint == "name of a model"
        (first, tokens), (again, _), (other, _) = await model.embed(["one", "one", "another"])
        assert tokens > 0
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    asyncio.run(main())


def test_an_answer_is_read_for_its_source_and_its_reason():
    reply = Reply()
    reply.status = 200
    reply.body(b'{"source":"stale","results":[],')
    reply.body(b'"reason":"postgres_down"}')
    assert reply.outcome() == ("served", "")
    assert (reply.source, reply.reason) == ("stale", "postgres_down")


@pytest.mark.parametrize(("status", "body"), [(500, b"{}"), (200, b"nonsense"), (200, b'{"results":[]}')])
def test_an_answer_that_says_no_source_is_none(status: int, body: bytes):
    reply = Reply()
    reply.status = status
    reply.body(body)
    assert reply.outcome()[0].startswith("failed:")


class Service:
    """Says `SOURCES` of what it is asked, until it is struck: then it says nothing any more."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.is_struck = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                kind = self._kind(json.loads(await reader.readexactly(length)))
                self.asked[kind] += 1
                if self.is_struck:
                    return
                body = json.dumps({"source": SOURCES[kind], "reason": "why" if kind == REFRESHED else None}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    def _kind(self, body: Mapping[str, object]) -> str:
        assert body["budget_ms"] == 100
        return NEW if str(body["query"]).startswith("new") else REFRESHED if body["cache_ttl_s"] == 0 else KNOWN

    async def strike(self) -> None:
        self.is_struck = True


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Service, int]]:
    service = Service()
    server = await asyncio.start_server(service.answer, "127.0.0.1", 0)
    async with server:
        yield service, server.sockets[0].getsockname()[1]


def asking(port: int) -> Questions:
    return Questions(port, ["a", "b"], (f"new {number}" for number in itertools.count()), 100)


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    def now() -> float:
        return asyncio.get_running_loop().time()

    with mock.patch.object(load, "perf_counter", now):
        steadily(main)


def test_each_kind_of_question_is_asked_at_its_rate_and_its_source_is_counted():
    async def main() -> None:
        async with serving() as (service, port):
            found = await offered(asking(port), port, {KNOWN: 200.0, REFRESHED: 100.0, NEW: 50.0}, 0.5, after_s=0.0)
        assert found.asked == service.asked.total() == found.sources.total()
        assert found.unanswered == 0
        assert {kind: found.sources[SOURCES[kind]] for kind in SOURCES} == service.asked
        assert service.asked[KNOWN] > service.asked[REFRESHED] > service.asked[NEW] > 0
        assert found.reasons == {"why": service.asked[REFRESHED]}
        assert found.quantile_ms(1.0) < math.inf

    in_virtual_time(main())


def test_what_comes_after_the_strike_is_counted_and_what_is_not_answered_took_for_ever():
    async def main() -> None:
        async with serving() as (service, port):
            found = await offered(asking(port), port, {NEW: 100.0}, 2.0, strike=service.strike, after_s=0.3)
        assert found.unanswered == found.asked > 0
        assert found.asked < service.asked.total()
        assert found.quantile_ms(0.99) == math.inf

    in_virtual_time(main())


def test_a_figure_holds_if_its_p99_is_within_a_quarter_more_than_the_budget():
    good, bad = seen([BOUND_MS] * 99 + [900.0]), seen([1.0] * 98 + [BOUND_MS + 1] * 2)
    lost = seen([1.0] * 98, unanswered=2)
    made = figures([Line(name, each, 1.0) for name, each in (("a", good), ("b", bad), ("c", lost))])
    assert [each.verdict for each in made] == ["held", "**missed**", "**missed**"]


def test_a_note_says_what_was_not_answered_and_when_the_client_itself_was_late():
    assert note(seen([5.0] * 10)) == "p50 5 ms; db 100%"
    told = note(seen([5.0] * 9, unanswered=1, late_ms=30.0))
    assert "1 of 10 were not answered" in told
    assert "the client itself was up to 30 ms late" in told


def test_every_condition_that_was_promised_is_there():
    of_postgres = {"200 ms slow", "frozen", "restarting", "out of connections"}
    of_redis = {"200 ms slow", "frozen", "full", "gone"}
    promised = {*(f"PostgreSQL {each}" for each in of_postgres), *(f"Redis {each}" for each in of_redis)}
    assert set(CONDITIONS) == {"both healthy", *promised}


def test_the_page_tells_every_condition_and_how_many_held():
    lines = [Line("all well", seen([5.0] * 100), 0.1), Line("all lost", seen([1.0] * 9, unanswered=1), 2.0)]
    made = result(lines, [Figure("speed", 10.0, "requests/s", 9)], Options(rows=5000, seconds=3))
    text = markdown(made, command="the command", machine="a machine", name="retrieval", drawn=[""])
    assert "`the command`, on a machine." in text
    assert "1 of 2 targets held.** Of the other figures: 1 of 1 targets held." in text
    assert [figure.held for figure in made.parts["conditions"]] == [True, False]
    assert "| all well | 5.00 | 5.00 | 5.00 | held | db 100% | postgres_down 1.0% | 0.10 | 0.10 |" in text
    assert "| all lost | 1.00 | inf | inf | **missed** | db 90%; 1 not answered |" in text
    assert "5,000 chunks" in text
    assert 'srcset="retrieval-dark.svg"' in text
    assert max(map(len, text.split("| Condition")[0].splitlines())) <= 200


def test_the_picture_is_drawn_for_light_and_dark_pages(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="pictures need the extra `simulate`")
    lines = [Line("all well", seen([5.0] * 100), 0.1), Line("all lost", seen([1.0] * 9, unanswered=1), 2.0)]
    *_, light, dark = write(result(lines, [], Options()), tmp_path / "retrieval", command="c", machine="m")
    assert [path.name for path in (light, dark)] == ["retrieval.svg", "retrieval-dark.svg"]
    assert all("all well" in path.read_text(encoding="utf-8") for path in (light, dark))


def test_a_reply_says_where_it_is_from():
    assert source_of(b'{"source":"semantic","results":[]}') == "semantic"
    assert source_of(b'{"error":{"code":"no_capacity"}}') == "error"
