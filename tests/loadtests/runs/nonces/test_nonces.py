"""What the long run of nonces is made of: its plan, its tricks, and how it finds a server out."""

from __future__ import annotations

from loadtests.faults.evil.tricks import ROWS
from loadtests.load.arrivals import asks
from loadtests.load.client import Client
from loadtests.load.connection import Exchange as Try
from loadtests.load.ledger import Row
from loadtests.runs.nonces.asking import Kept, Questions
from loadtests.runs.nonces.judge import Verdict
from loadtests.runs.nonces.prompt import nonce
from loadtests.runs.nonces.run import plan_of
from loadtests.runs.nonces.tally import Tally
from services.runtime.http import Exchange
from tests.loadtests.load.scripted import steadily
from tests.runtime.rig import serving


def test_a_plan_has_as_many_questions_as_were_asked_for() -> None:
    for requests in (20, 77, 1000):
        assert len(list(asks(plan_of(requests, seed=1)))) == requests


def test_every_trick_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 40


def test_a_server_that_gives_everybody_the_same_answer_is_found_out() -> None:
    async def main() -> Tally:
        first: list[bytes] = []

        async def answer(exchange: Exchange) -> None:
            first.append(exchange.body)
            text = first[0].decode().rpartition("Question: ")[2][:16]
            await exchange.reply(200, b'{"choices": [{"message": {"content": "%b"}}]}' % text.encode())

        async with serving({("POST", "/v1/chat/completions"): answer}) as process:
            url, tally = f"http://127.0.0.1:{process.bound_port}", Tally()
            client = Client(plan_of(20, seed=1), url, requests=Questions(url), answer=Kept, listen=tally.hear)
            await client.run()
        return tally

    tally = steadily(main())
    assert tally.verdicts == {Verdict.FOREIGN: 19, Verdict.WRONG: 1}  # the first got its own nonce, and no answer
    assert not tally.honest


def late(by_s: float, tally: Tally) -> Tally:
    """One that was answered so long after its deadline."""
    row, exchange = Row(1, "a", 0.0, 2000.0), Try(b"", lambda exchange: None)
    row.last_sent_s, row.end_s, exchange.ended_at = 0.0, 2.0 + by_s, 102.0 + by_s
    exchange.request, exchange.answer = nonce(1).encode(), Kept()
    tally.hear(row, exchange)
    return tally


def test_what_is_late_because_the_machine_stood_still_does_not_hang() -> None:
    assert late(0.2, Tally()).hung == 0
    assert late(0.3, Tally()).hung == 1
    asked: list[tuple[float, float]] = []

    def still(begin: float, end: float) -> float:
        asked.append((round(begin, 6), round(end, 6)))
        return 0.1

    assert late(0.3, Tally(still)).hung == 0
    assert asked == [(102.0, 102.3)]  # what was lost before the deadline made nothing late
    assert late(0.5, Tally(still)).hung == 1
