"""A worker and a retrieval that stop answering at the stage that a request names.

The question begins with a stage's name (`STAGES`); for retrieval it is the query. GET /there returns how many requests
have reached their stage. Both ports share one process, so a failing first attempt and the retry share state.

Run: python -m loadtests.faults.evil.staged MODEL PORT PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from random import Random

from loadtests.faults.evil.events import error
from loadtests.faults.evil.talk import LAST_CHUNK, Talk, chunks, length
from loadtests.faults.evil.worker import QUESTIONS, EvilWorker, Trick, running

STAGES = (
    "connect", "headers", "body", "queued", "retrieval", "dispatched", "in batch", "first token", "mid-stream",
    "last token", "after the end", "retry",
)  # fmt: skip
SLOTS = 64
LAST_WITHIN_S = 0.03  # the last event comes around the time of the client's disconnect
TOKENS = {"first token": 1, "mid-stream": 5, "last token": 8}
WHOLE = {"in batch": 1, "first token": 8, "mid-stream": 30, "last token": -1}  # bytes of a plain answer
PART_OF_AN_EVENT = 5


class Stages:
    """State of both ports. `there`: requests that have reached their stage."""

    def __init__(self) -> None:
        self.there = 0
        self._tried: set[bytes] = set()
        self._chance = Random(1)

    def act(self, talk: Talk) -> Trick:
        stage = _stage(talk)
        if stage == "retry" and talk.id not in self._tried:
            self._tried.add(talk.id)
            return error(500, b"")
        return {"after the end": Talk.send_all, "last token": self._last_token}.get(stage, self._hang)

    async def _hang(self, talk: Talk) -> None:
        """Begin, then send nothing more."""
        await _begin(talk)
        self.there += 1
        await asyncio.Event().wait()

    async def _last_token(self, talk: Talk) -> None:
        """Send all but the end, then the end after a random delay."""
        await _begin(talk)
        self.there += 1
        await asyncio.sleep(self._chance.random() * LAST_WITHIN_S)
        await talk.send(chunks(*talk.ends if talk.stream else [talk.whole[-1:]]), LAST_CHUNK)


def _stage(talk: Talk) -> str:
    asked = str(talk.asked.get("query") or talk.asked["messages"][-1]["content"])
    return next(stage for stage in STAGES if asked.startswith(stage))


async def _begin(talk: Talk) -> None:
    """Send the part of the answer before the stage; nothing for stages before the first byte."""
    if "messages" not in talk.asked:
        return
    stage = _stage(talk)
    pieces = talk.words[: TOKENS.get(stage, 0)] if talk.stream else [talk.whole[: WHOLE.get(stage, 0)]]
    if stage == "in batch" and talk.stream:
        pieces = [talk.words[0][:PART_OF_AN_EVENT]]
    if any(pieces):
        await talk.send(talk.head(), chunks(*pieces))


class StagedWorker(EvilWorker):
    questions = (*QUESTIONS, "/retrieve")

    def __init__(self, stages: Stages, model: str) -> None:
        super().__init__("weir", stages.act, model=model, slots=SLOTS)
        self._stages = stages

    def _plain(self, path: str) -> bytes:
        if path != "/there":
            return super()._plain(path)
        body = json.dumps(self._stages.there).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + length(len(body)) + b"\r\n" + body


async def main(model: str, *ports: int) -> None:
    stages = Stages()
    async with AsyncExitStack() as stack:
        for port in ports:
            await stack.enter_async_context(running(StagedWorker(stages, model), port))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
