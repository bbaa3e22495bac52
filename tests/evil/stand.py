"""A real router before two workers: one that does as a trick says, and one that is honest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from loadtests.faults.evil.row import Row
from loadtests.faults.evil.worker import EvilWorker, honest
from loadtests.faults.evil.worker import running as answering
from loadtests.judging.answers import Received, Verdict, judge
from loadtests.judging.nonces import NONCE, nonce, prompt, right, tokens
from services.contracts.generate import Done, GenerateRequest, Timings, Token, Usage
from services.runtime.http import Exchange
from tests.router.rig import FakeWorker, Stand, build_service, standing, until
from tests.virtual import running_here

MODEL = "weir-sim"
MAX_TOKENS = 40
PLENTY_MS = 20_000
SOON_MS = 500  # where a trick is over only by a deadline
SILENCE_S = 0.2
MAX_TRIES = 12  # until one of two workers is asked that take turns
NUMBERS = count(1)


async def echo(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
    """The right answer, from a server that is not the evil one's."""
    found = NONCE.search(exchange.body)
    assert found is not None, exchange.body
    said = tokens(right(found[0].decode()))
    usage, timings = Usage(9, len(said)), Timings(0.1, 0.2, 0.3)
    if not request.stream:
        done = Done("stop", usage, timings, 1, "".join(said))
        await exchange.reply(200, msgspec.json.encode(done) + b"\n", content_type=b"application/x-ndjson")
        return
    await exchange.start(200, b"application/x-ndjson")
    for text in said:
        await exchange.write(msgspec.json.encode(Token(text)) + b"\n")
    await exchange.write(msgspec.json.encode(Done("stop", usage, timings, 1)) + b"\n")
    await exchange.end()


@dataclass
class Pair:
    """What stands: the router's own rig, and the two workers."""

    stand: Stand
    evil: EvilWorker
    good: FakeWorker
    verdicts: list[Verdict]

    async def ask(self, path: str, *, stream: bool, deadline_ms: int = PLENTY_MS) -> tuple[str, Verdict, Received]:
        """One question through the router: its nonce, and what its client may believe."""
        mark = nonce(next(NUMBERS))
        body: dict[str, Any] = {"stream": stream, "max_tokens": MAX_TOKENS}
        if path == "/ask":
            body |= {"query": prompt(mark)}
        else:
            body |= {"messages": [{"role": "user", "content": prompt(mark)}]}
        reply = await self.stand.post(path, body, x_weir_deadline_ms=str(deadline_ms))
        kind = reply.headers.get("content-type", "")
        heard = Received(reply.status_code, reply.content, kind.startswith("text/event-stream"))
        verdict = judge(heard, mark, MAX_TOKENS)
        if verdict is Verdict.RIGHT:
            assert heard.stream == stream
        self.verdicts.append(verdict)
        return mark, verdict, heard

    async def until_both_are_up(self) -> None:
        """What a trick has cost the evil worker is over: it may be asked again."""
        workers = self.stand.dispatcher.fleet.workers
        await until(lambda: all(worker.live and not worker.resting for worker in workers), "both workers are up")

    async def ask_evil(self, path: str, *, stream: bool, deadline_ms: int) -> tuple[Verdict, Received]:
        """Ask until the evil worker is asked; whoever is not sent there gets a right answer."""
        for _ in range(MAX_TRIES):
            await self.until_both_are_up()
            mark, verdict, heard = await self.ask(path, stream=stream, deadline_ms=deadline_ms)
            if mark in self.evil.asked:
                return verdict, heard
            assert verdict is Verdict.RIGHT, heard
        raise AssertionError("the evil worker was never asked")

    async def settled(self) -> None:
        """Nothing is held any more: no place, no connection, and every request has been counted as it was told."""
        await self.stand.all_returned()
        pools = [vars(worker.upstream)["_pool"] for worker in self.stand.dispatcher.fleet.workers]
        await until(lambda: not any(pool.in_use or pool.lingering for pool in pools), "every connection is given back")
        counted = await self.stand.counted()
        assert sum(counted.values()) == len(self.verdicts), counted
        assert counted.get("served", 0) == self.verdicts.count(Verdict.RIGHT), counted
        assert "internal_error" not in counted, counted


@asynccontextmanager
async def pair(row: Row, kind: str, folder: Path, **settings: Any) -> AsyncIterator[Pair]:
    """Both workers and the router; checked for leaks at the end."""
    good = FakeWorker(echo, models=(MODEL,))
    async with AsyncExitStack() as stack:
        process = build_service(good.routes(), drain_timeout_s=0.2)
        await stack.enter_async_context(running_here(process))
        stack.callback(process.log.close)
        evil = await stack.enter_async_context(answering(EvilWorker(kind, lambda talk: row.act, model=MODEL)))
        workers = [
            {"name": "good", "kind": "weir", "url": f"http://127.0.0.1:{process.bound_port}"},
            {"name": "evil", "kind": kind, "url": evil.url},
        ]
        if kind == "openai":
            workers[1] |= {"slots": 4, "models": [MODEL]}  # type: ignore[dict-item]  # JSON is YAML
        file = folder / "workers.yaml"
        file.write_text(json.dumps({"workers": workers}))
        chosen = {"retry_share": 1.0, "stream_silence_s": SILENCE_S if row.slow else 30.0, **settings}
        stand = await stack.enter_async_context(standing(upstreams=str(file), **chosen))
        both = Pair(stand, evil, good, [])
        yield both
        await both.settled()


HONEST = Row("an honest answer", honest)
