"""One slow answer teaches little: what a router before idle workers does after an outlier, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from services.runtime.http import Exchange
from services.runtime.serve import Process
from tests.router.rig import Stand, standing
from tests.runtime.rig import build as build_service
from tests.virtual import run, running_here

TOKEN_S = 0.01
START_S = 0.005
STALL_S = 20.0
SLOTS = 4
TOKENS = 20

Delay = Callable[[int], float]


class Server:
    """An OpenAI-compatible server of equal tokens. `delays` by the number of the answer, from 1: seconds before its
    first token, and seconds in the middle of it.
    """

    def __init__(self, before: Delay = lambda number: 0.0, within: Delay = lambda number: 0.0) -> None:
        self.before, self.within = before, within
        self.answers = 0

    def process(self) -> Process:
        return build_service({("POST", "/v1/chat/completions"): self.answer, ("GET", "/v1/models"): self.models})

    async def models(self, exchange: Exchange) -> None:
        await exchange.reply(200, msgspec.json.encode({"data": [{"id": "fake"}]}))

    async def answer(self, exchange: Exchange) -> None:
        self.answers += 1
        body, number = msgspec.json.decode(exchange.body), self.answers
        tokens = min(body["max_tokens"], TOKENS)
        await asyncio.sleep(self.before(number) + START_S + self.within(number) + tokens * TOKEN_S)
        finish = "length" if tokens == body["max_tokens"] else "stop"
        choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": "a " * tokens}}
        usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens}
        await exchange.reply(200, msgspec.json.encode({"id": "x", "choices": [choice], "usage": usage}))


async def ask(stand: Stand, number: int) -> httpx2.Response:
    """Chat, chat, /ask, and so on."""
    headers = {"x-slo-ms": "60000"}
    if number % 3 == 2:
        return await stand.client.post("/ask", json={"query": "What is a weir?", "max_tokens": TOKENS}, headers=headers)
    return await stand.chat(max_tokens=TOKENS, headers=headers)


def listed(folder: Path, port: int) -> str:
    path = folder / "workers.yaml"
    path.write_text(
        f"workers:\n  - {{name: up, url: 'http://127.0.0.1:{port}/v1', kind: openai, models: [fake], slots: {SLOTS}}}\n"
    )
    return str(path)


async def levels_after(folder: Path, server: Server, ordinary: int, for_s: float) -> list[int]:
    """The level of each answer of an idle router in `for_s` seconds after `ordinary` answers and one more."""
    process = server.process()
    async with running_here(process):
        try:
            async with standing(upstreams=listed(folder, process.bound_port)) as stand:
                await stand.until_up(1)
                stand.client.timeout = httpx2.Timeout(60.0)
                for number in range(ordinary + 1):
                    first = await ask(stand, number)
                    assert first.status_code == 200, first.text
                loop, found = asyncio.get_running_loop(), []
                until = loop.time() + for_s
                while loop.time() < until:
                    answer = await ask(stand, ordinary + 1 + len(found))
                    assert answer.status_code == 200, answer.text
                    found.append(int(answer.headers["x-weir-level"]))
                return found
        finally:
            process.log.close()


def at(number: int) -> Delay:
    return lambda answered: STALL_S if answered == number else 0.0


@pytest.mark.parametrize(
    ("server", "ordinary"),
    [
        pytest.param(Server(before=at(21)), 20, id="in prefill"),
    ],
)
def test_an_idle_router_cuts_no_answer_after_one_slow_one(tmp_path: Path, server: Server, ordinary: int) -> None:
    async def main() -> list[int]:
        return await levels_after(tmp_path, server, ordinary, for_s=40.0)

    levels = run(main())
    print(len(levels), {l: levels.count(l) for l in set(levels)})
    assert len(levels) > 100
    assert not any(levels)
