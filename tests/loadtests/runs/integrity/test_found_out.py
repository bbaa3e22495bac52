"""A server that gives everybody the same answer is found out by the clients of the run."""

from __future__ import annotations

from loadtests.cluster.making import CHAT
from loadtests.faults.evil.tricks import ROWS
from loadtests.judging.answers import Verdict
from loadtests.load.client import Client
from loadtests.runs.integrity.checker import Checked, Checker, End
from loadtests.runs.integrity.listener import Listener
from loadtests.runs.integrity.logs import RouterLog
from loadtests.runs.integrity.questions import Kept, Questions, asks, plan_of
from services.runtime.http import Exchange
from tests.loadtests.load.scripted import steadily
from tests.runtime.rig import serving


def test_every_trick_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 134


def test_a_server_that_gives_everybody_the_same_answer_is_found_out() -> None:
    async def main() -> tuple[Listener, Checked]:
        first: list[bytes] = []

        async def answer(exchange: Exchange) -> None:
            first.append(exchange.body)
            text = first[0].decode().rpartition("Question: ")[2][:16]
            await exchange.reply(200, b'{"choices": [{"message": {"content": "%b"}}]}' % text.encode())

        async with serving({("POST", "/v1/chat/completions"): answer}) as process:
            url, listener = f"http://127.0.0.1:{process.bound_port}", Listener()
            plan = plan_of(1, 50, 2000, seed=1)
            chats = (ask for ask in asks(plan, 50) if ask.tenant.name == CHAT)
            client = Client(plan, url, chats, requests=Questions(url), answer=Kept, listen=listener.record)
            await client.run()
        return listener, Checker([]).check(listener.entries, RouterLog())

    listener, found = steadily(main())
    count = len(listener.entries)
    assert listener.verdicts == {Verdict.FOREIGN: count - 1, Verdict.WRONG: 1}  # the first had its nonce, and no answer
    assert not found.clean
    assert found.ends[End.FOREIGN] == count - 1 > 10
