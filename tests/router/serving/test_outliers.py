"""One slow answer teaches little: what a router does for idle workers after an outlier, in virtual time.

Decision records 073 and 074. The workers are an OpenAI-compatible server that announces nothing; no retrieval answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from services.runtime.http import Exchange
from services.runtime.serve import Process
from tests.router.rig import Stand, error_of, standing
from tests.router.tenancy.test_identity import as_tenant, entry, listed
from tests.runtime.rig import build as build_service
from tests.virtual import run, running_here

TOKEN_S = 0.01
START_S = 0.03
STALL_S = 20.0
SLOTS = 4
TOKENS = 20
PATIENT, TIGHT = {"x-weir-deadline-ms": "60000"}, {"x-weir-deadline-ms": "600"}
"""A deadline that waits for a stall, and one of three ordinary answers."""

Delay = Callable[[int], float]


class Server:
    """Tokens of equal length, whole or as a stream. `before` and `within`: additional seconds before the first token
    and after it, by the number of the answer, from 1. `slower`: a factor on all times.
    """

    def __init__(self, before: Delay = lambda number: 0.0, within: Delay = lambda number: 0.0) -> None:
        self.before, self.within = before, within
        self.slower = 1.0
        self.answers = 0
        self.busy_s = 0.0

    def process(self) -> Process:
        return build_service({("POST", "/v1/chat/completions"): self.answer, ("GET", "/v1/models"): self.models})

    async def models(self, exchange: Exchange) -> None:
        await exchange.reply(200, msgspec.json.encode({"data": [{"id": "fake"}]}))

    async def answer(self, exchange: Exchange) -> None:
        self.answers += 1
        body, number, began = msgspec.json.decode(exchange.body), self.answers, asyncio.get_running_loop().time()
        tokens = body["max_tokens"]
        end = {"index": 0, "finish_reason": "length"}
        usage = {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens}
        await asyncio.sleep(self.slower * START_S + self.before(number))
        if body.get("stream"):
            await exchange.start(200, b"text/event-stream")
            for at in range(tokens):
                await asyncio.sleep(self.slower * TOKEN_S + (self.within(number) if at == 1 else 0.0))
                await say(exchange, {"choices": [{"index": 0, "delta": {"content": "a "}}]})
            await say(exchange, {"choices": [{**end, "delta": {}}]})
            await say(exchange, {"choices": [], "usage": usage})
            await exchange.write(b"data: [DONE]\n\n")
            await exchange.end()
        else:
            await asyncio.sleep(self.slower * tokens * TOKEN_S + self.within(number))
            choice = {**end, "message": {"role": "assistant", "content": "a " * tokens}}
            await exchange.reply(200, msgspec.json.encode({"id": "x", "choices": [choice], "usage": usage}))
        self.busy_s += asyncio.get_running_loop().time() - began


async def say(exchange: Exchange, event: dict[str, object]) -> None:
    await exchange.write(b"data: " + msgspec.json.encode(event) + b"\n\n")


@asynccontextmanager
async def before(server: Server, folder: Path, **settings: Any) -> AsyncIterator[Stand]:
    """A router before this server."""
    process = server.process()
    async with running_here(process):
        url = f"http://127.0.0.1:{process.bound_port}/v1"
        path = folder / "workers.yaml"
        path.write_text(f"workers: [{{name: up, kind: openai, url: '{url}', models: [fake], slots: {SLOTS}}}]")
        async with standing(upstreams=str(path), **settings) as stand:
            await stand.until_up(1)
            stand.client.timeout = httpx2.Timeout(90.0)
            yield stand
    process.log.close()


async def ask(stand: Stand, number: int, headers: dict[str, str]) -> httpx2.Response:
    """Chat, stream, /ask, and so on."""
    if number % 3 == 2:
        return await stand.client.post("/ask", json={"query": "What is a weir?", "max_tokens": TOKENS}, headers=headers)
    return await stand.chat(max_tokens=TOKENS, stream=number % 3 == 1, headers=headers)


async def all_are_whole(stand: Stand, for_s: float, headers: dict[str, str]) -> None:
    """A client that asks again when it is answered gets whole answers at level 0, for so many seconds."""
    loop, asked = asyncio.get_running_loop(), 0
    until = loop.time() + for_s
    while loop.time() < until:
        answer = await ask(stand, asked, headers)
        cuts = [each for each in answer.headers.get("x-weir-degraded", "").split(",") if each not in ("", "retrieval")]
        told = f"answer {asked}: {answer.status_code}, level {answer.headers['x-weir-level']}, cut: {cuts}"
        assert (answer.status_code, answer.headers["x-weir-level"], cuts) == (200, "0", []), told
        asked += 1
    assert asked > 3 * for_s


def at(*numbers: int) -> Delay:
    return lambda answered: STALL_S if answered in numbers else 0.0


@pytest.mark.parametrize(
    ("server", "ordinary"),
    [
        pytest.param(Server(before=at(21)), 20, id="in prefill"),
        pytest.param(Server(within=at(20)), 19, id="in decode"),
        pytest.param(Server(before=at(1)), 0, id="in the first of all, which loads the model"),
        pytest.param(Server(before=at(4, 5, 6)), 5, id="in three in a row among the first"),
        pytest.param(Server(before=at(201)), 200, id="after two hundred"),
    ],
)
def test_a_router_before_free_slots_cuts_and_refuses_nothing_after_a_slow_answer(
    tmp_path: Path, server: Server, ordinary: int
) -> None:
    async def main() -> None:
        async with before(server, tmp_path) as stand:
            for number in range(ordinary + 1):
                assert (await ask(stand, number, PATIENT)).status_code == 200
            await all_are_whole(stand, 15.0, TIGHT)

    run(main())


def test_a_router_before_free_slots_cuts_and_refuses_nothing_after_a_stall_with_a_queue(tmp_path: Path) -> None:
    server = Server(before=at(21, 22, 23, 24))

    async def main() -> None:
        async with before(server, tmp_path) as stand:
            for number in range(20):
                assert (await ask(stand, number, PATIENT)).status_code == 200
            crowd = await asyncio.gather(*(ask(stand, number, PATIENT) for number in range(5 * SLOTS)))
            assert Counter(answer.status_code for answer in crowd)[200] >= SLOTS
            await all_are_whole(stand, 15.0, TIGHT)

    run(main())


@pytest.mark.parametrize("slower", [2.5, 8.0])
def test_a_router_before_free_slots_cuts_and_refuses_nothing_after_a_slow_minute(tmp_path: Path, slower: float) -> None:
    server = Server()

    async def main() -> None:
        async with before(server, tmp_path) as stand:
            await all_are_whole(stand, 10.0, TIGHT)
            server.slower = slower
            until, number = asyncio.get_running_loop().time() + 60.0, 0
            while asyncio.get_running_loop().time() < until:
                number += 1
                assert (await ask(stand, number, PATIENT)).status_code == 200
            server.slower = 1.0
            for number in range(10):
                assert (await ask(stand, number, PATIENT)).status_code == 200
            await all_are_whole(stand, 15.0, TIGHT)

    run(main())


def test_what_cannot_all_be_in_time_is_refused_while_the_slots_are_busy(tmp_path: Path) -> None:
    """Eight clients on four slots, and a deadline that one answer fits and two do not: some are refused at once as
    infeasible, none comes too late, and the slots are busy."""
    server, ends = Server(), Counter[str]()

    async def client(stand: Stand, until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            answer = await stand.chat(max_tokens=40, headers=as_tenant("whole", **TIGHT))
            ends["answered" if answer.status_code == 200 else error_of(answer)["code"]] += 1
            assert "x-weir-degraded" not in answer.headers
            if answer.status_code != 200:
                await asyncio.sleep(0.2)

    async def main() -> float:
        async with before(server, tmp_path, tenants_file=listed(tmp_path, entry("whole"))) as stand:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(client(stand, loop.time() + 5.0) for _ in range(2 * SLOTS)))
            began, before_s = loop.time(), server.busy_s
            ends.clear()
            await asyncio.gather(*(client(stand, began + 20.0) for _ in range(2 * SLOTS)))
            return (server.busy_s - before_s) / (SLOTS * (loop.time() - began))

    busy = run(main())
    assert ends["answered"] + ends["deadline_infeasible"] > 0.99 * ends.total(), ends
    assert busy > 0.9
    assert 1 / 3 <= ends["deadline_infeasible"] / ends.total() <= 3 / 4
