"""The bench's own parts: its arithmetic, its tables and its client. What it measures is not tested: machines differ."""

from __future__ import annotations

import asyncio
import io
from unittest import mock

import pytest
from rich.console import Console

from loadtests.bench import client
from loadtests.bench.client import Tally, closed_loop, open_loop, post
from loadtests.bench.retrieval.budget import source_of
from loadtests.bench.summary import result, table
from loadtests.report.figure import Figure, median, number
from loadtests.report.result import markdown
from tests.virtual import run

HELD = Figure("throughput", 6123.4, "requests/s", 5000, note="p50 4.0 ms")
MISSED = Figure("memory", 91.0, "MB", 80, at_least=False)
PLAIN = Figure("pace", 1.234, "chunks/s")
MEASURED = {"router": [HELD, MISSED], "retrieval": [PLAIN]}


def test_a_quantile_is_one_of_the_samples_and_of_none_there_is_none():
    tally = Tally(seconds=[n / 1000 for n in range(100, 0, -1)])
    assert [tally.quantile_ms(q) for q in (0, 0.5, 0.99, 1)] == pytest.approx([1, 51, 100, 100])
    assert str(Tally().quantile_ms(0.5)) == "nan"


def test_a_figure_holds_its_target_misses_it_or_has_none():
    assert [figure.verdict for figure in (HELD, MISSED, PLAIN)] == ["held", "**missed**", ""]
    assert [figure.wanted for figure in (HELD, MISSED, PLAIN)] == ["≥ 5,000 requests/s", "≤ 80.0 MB", ""]
    assert Figure("latency", float("nan"), "ms", 1.5, at_least=False).verdict == "**missed**"


def test_numbers_keep_three_digits_that_count():
    assert [number(value) for value in (12345.6, 99.94, 1.2345, -0.5)] == ["12,346", "99.9", "1.23", "-0.50"]


def test_repeated_runs_become_their_median_with_its_extremes_and_its_note():
    runs = [[Figure("a", value, "ms", note=f"run of {value}")] for value in (3.0, 1.0, 2.0)]
    (figure,) = median(runs)
    assert (figure.value, figure.low, figure.high, figure.note) == (2.0, 1.0, 3.0, "run of 2.0")
    assert figure.shown == "2.00 ms (1.00-3.00)"


def test_the_table_shows_every_figure_with_its_verdict():
    out = io.StringIO()
    Console(file=out, width=160).print(table(MEASURED))
    _, *rows = out.getvalue().splitlines()
    assert [row.split()[:2] for row in rows] == [["router", "throughput"], ["memory", "91.0"], ["retrieval", "pace"]]
    assert "6,123 requests/s ≥ 5,000 requests/s held" in " ".join(rows[0].split())
    assert "missed" in rows[1]


def test_the_page_names_machine_command_targets_and_method():
    page = markdown(result(MEASURED, 4), command="make bench", machine="2 cores of a Quern")
    assert "`make bench`, on 2 cores of a Quern" in page
    assert "1 of 2 targets held" in page
    assert "| router | throughput | 6,123 requests/s | ≥ 5,000 requests/s | held | p50 4.0 ms |" in page
    assert "closed loop" in page
    assert "open loop" in page


WHOLE = b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"source":"db"}'
STREAMED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers by what stands in the request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        answer = STREAMED if b"stream" in data else REFUSED if b"refuse" in data else WHOLE
        if b"vanish" in data:
            self.transport.close()
        half = len(answer) // 2
        self.transport.write(answer[:half])
        asyncio.get_running_loop().call_soon(self.transport.write, answer[half:])


def against_a_server(load):
    async def main():
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        async with server:
            return await load(server.sockets[0].getsockname()[1])

    def now():
        return asyncio.get_running_loop().time()

    with mock.patch.object(client, "perf_counter", now):
        return run(main())


def test_the_closed_loop_counts_answers_statuses_and_verdicts():
    def load(port):
        return closed_loop(port, post(port, "/retrieve", b"{}"), 3, 0.1, judge=source_of)

    tally = against_a_server(load)
    answers = len(tally.seconds)
    assert answers >= 3
    assert tally.statuses == {200: answers}
    assert tally.verdicts == {"db": answers}
    assert tally.rate_of("db") == pytest.approx(tally.per_second)


def test_the_closed_loop_asks_for_the_next_request_each_time():
    asked = iter(range(10**9))
    tally = against_a_server(lambda port: closed_loop(port, lambda: post(port, "/", b"%d" % next(asked)), 2, 0.05))
    assert next(asked) >= len(tally.seconds) > 0


def test_streams_are_counted_in_events_and_refusals_by_status():
    streamed = against_a_server(lambda port: closed_loop(port, post(port, "/", b"stream"), 1, 0.05))
    assert streamed.events == 2 * len(streamed.seconds) > 0
    refused = against_a_server(lambda port: closed_loop(port, post(port, "/", b"refuse"), 1, 0.05))
    assert set(refused.statuses) == {429}


def test_the_open_loop_sends_at_its_own_rate_and_counts_what_was_lost():
    tally = against_a_server(lambda port: open_loop(port, post(port, "/", b"{}"), rate=400, seconds=0.1))
    assert len(tally.seconds) == sum(tally.statuses.values()) > 0
    assert tally.failed == 0
    lost = against_a_server(lambda port: open_loop(port, post(port, "/", b"vanish"), rate=100, seconds=0.1))
    assert lost.failed > 0
    assert lost.seconds == []
