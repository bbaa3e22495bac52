"""The closed loop: what is asked again and again, counted; and requests that are there to hold a place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar
from unittest import mock

import pytest

from loadtests.load import closed
from loadtests.load.closed import LoopResults, closed_loop, closed_number, hold, post
from loadtests.load.rates import Same, at_rates
from tests.loadtests.load.scripted import answer, serving, steadily
from tests.virtual import run

T = TypeVar("T")
WHOLE = b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"source":"db"}'
STREAMED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"


class Server(asyncio.Protocol):
    """Answers by what stands in the request, in two halves."""

    def __init__(self, heard: list[bytes]) -> None:
        self.heard = heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)
        if b"hang" in data:
            return
        if b"vanish" in data:
            self.transport.close()
            return
        reply = STREAMED if b"stream" in data else REFUSED if b"refuse" in data else WHOLE
        half = len(reply) // 2
        self.transport.write(reply[:half])
        asyncio.get_running_loop().call_soon(self.transport.write, reply[half:])


def against_a_server(load: Callable[[int], Awaitable[T]]) -> tuple[T, list[bytes]]:
    """What the load comes to, and what the server heard."""
    heard: list[bytes] = []

    async def main() -> T:
        server = await asyncio.get_running_loop().create_server(lambda: Server(heard), "127.0.0.1", 0)
        async with server:
            return await load(server.sockets[0].getsockname()[1])

    def now() -> float:
        return asyncio.get_running_loop().time()

    with mock.patch.object(closed, "perf_counter", now):
        return run(main()), heard


def asked(port: int, body: bytes = b"{}") -> bytes:
    return post(port, "/retrieve", body)


def test_a_quantile_is_one_of_the_samples_and_of_none_there_is_none() -> None:
    results = LoopResults(seconds=[n / 1000 for n in range(100, 0, -1)])
    assert [results.quantile_ms(q) for q in (0, 0.5, 0.99, 1)] == pytest.approx([1, 50, 99, 100])
    assert str(LoopResults().quantile_ms(0.5)) == "nan"


def test_answers_statuses_and_verdicts_are_counted() -> None:
    results, _ = against_a_server(lambda port: closed_loop(port, asked(port), 3, 0.1, judge=lambda body: body.decode()))
    answers = len(results.seconds)
    assert answers >= 3
    assert results.statuses == {200: answers}
    assert results.verdicts == {'{"source":"db"}': answers}
    assert results.rate_of('{"source":"db"}') == pytest.approx(results.per_second)


def test_what_comes_in_the_time_is_counted_and_not_what_comes_before_or_after_it() -> None:
    results, heard = against_a_server(lambda port: closed_loop(port, asked(port), 2, 0.4, warm_up_s=0.2))
    assert results.wall_s == pytest.approx(0.4)
    assert len(results.seconds) == pytest.approx(len(heard) * 0.4 / 0.6, rel=0.05)
    assert sum(results.seconds) == pytest.approx(2 * 0.4, rel=0.05), "each of the two always asks"


def test_a_server_that_hangs_up_ends_the_loop_with_an_error() -> None:
    with pytest.raises(ConnectionError):
        against_a_server(lambda port: closed_loop(port, asked(port, b"vanish"), 2, 0.4))


def test_the_next_request_is_asked_each_time() -> None:
    numbers = iter(range(10**9))
    results, _ = against_a_server(lambda port: closed_loop(port, lambda: asked(port, b"%d" % next(numbers)), 2, 0.05))
    assert next(numbers) >= len(results.seconds) > 0


def test_streams_are_counted_in_events_and_refusals_by_status() -> None:
    streamed, _ = against_a_server(lambda port: closed_loop(port, asked(port, b"stream"), 1, 0.05))
    assert streamed.events == 2 * len(streamed.seconds) > 0
    refused, _ = against_a_server(lambda port: closed_loop(port, asked(port, b"refuse"), 1, 0.05))
    refused.only(429)
    with pytest.raises(RuntimeError, match="429"):
        refused.only(200)


def test_a_number_of_requests_is_sent_to_the_last_one_each_in_its_turn() -> None:
    results, heard = against_a_server(lambda port: closed_number(port, [asked(port), asked(port, b"refuse")], 3, 20))
    assert results.statuses == {200: 10, 429: 10}
    assert Counter(b"refuse" in each for each in heard) == {True: 10, False: 10}
    assert results.wall_s > 0


def test_what_holds_a_place_has_arrived_and_is_not_answered() -> None:
    held, heard = against_a_server(lambda port: hold(port, [asked(port, b"hang %d" % n) for n in range(3)], 0.1))
    assert len(held) == len(heard) == 3
    assert not any(each.done is None or each.done.done() for each in held)


def test_an_open_loop_sends_each_kind_at_its_rate() -> None:
    async def main() -> Counter[str]:
        async with serving(answer) as (_, url):
            port = int(url.rsplit(":", 1)[1])
            ledger = await at_rates(port, {"many": 200.0, "few": 50.0, "none": 0.0}, Same(asked(port)), 1.0)
        assert {row.ending for row in ledger.rows} == {"served_on_time"}
        return Counter(row.tenant for row in ledger.rows)

    sent = steadily(main())
    assert sent["many"] == pytest.approx(200, rel=0.3)
    assert sent["few"] == pytest.approx(50, rel=0.4)
    assert "none" not in sent
