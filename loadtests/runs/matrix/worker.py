"""`python -m loadtests.runs.matrix.worker`: the simulated worker, with POST /v1/chat/completions as well.

Gateways for OpenAI-compatible servers use the same workers as Weir: one engine, one queue, one process, two interfaces.
The OpenAI interface lacks what such servers lack: it gets no deadline, and its rejections have no hint. It has no
streams, because the loads use none. The settings are those of a worker.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from secrets import token_hex
from time import time

import msgspec
from fastapi import FastAPI

from services.contracts.generate import Done, GenerateRequest, Message
from services.contracts.openai import AnswerMessage, ChatChoice, ChatCompletion, ChatRequest, Usage
from services.core.outcome import Outcome
from services.runtime.api import add_native
from services.runtime.errors import BadInput, Refused
from services.runtime.http import Exchange
from services.runtime.serve import run
from services.runtime.settings import load
from services.runtime.strictjson import decode
from services.worker.app import build
from services.worker.batching import EngineLoop
from services.worker.config import WorkerSettings
from services.worker.job import Job

NO_DEADLINE_MS = 120_000  # the maximum of a worker
DEFAULT_TOKENS = 256
TENANT = "any"  # OpenAI-compatible servers do not know the tenant


class OpenAiRoutes:
    def __init__(self, loop: EngineLoop, model: str) -> None:
        self._loop = loop
        self._model = model
        self._prefix = token_hex(4)
        self._numbers = count(1)

    def add_to(self, api: FastAPI) -> None:
        routes = {
            ("POST", "/v1/chat/completions"): self.chat,
            ("GET", "/v1/models"): self.models,
            ("GET", "/server_info"): self.about,  # what sglang-router asks a new worker for
            ("GET", "/model_info"): self.about,
        }
        add_native(api, routes, {})

    async def models(self, exchange: Exchange) -> None:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "weir"}
        await exchange.reply(200, msgspec.json.encode({"object": "list", "data": [model]}))

    async def about(self, exchange: Exchange) -> None:
        description = {"model_path": self._model, "served_model_name": self._model, "is_generation": True}
        await exchange.reply(200, msgspec.json.encode(description))

    async def chat(self, exchange: Exchange) -> None:
        asked = decode(exchange.body, ChatRequest)
        if asked.stream:
            raise BadInput("stream: these routes have no streams", "stream")
        job = await self._submit(self._request(asked))
        exchange.on_gone(partial(self._loop.abandon, job))
        try:
            text = "".join(await job.stream.take())
        finally:
            self._loop.abandon(job)  # has an effect only if this handler was interrupted
        ending = job.stream.ending
        if not isinstance(ending, Done):
            outcome, why = (Outcome.INTERNAL, "no ending") if ending is None else (ending.outcome, ending.message)
            raise Refused(outcome, why)
        exchange.log["completion_tokens"] = ending.usage.completion_tokens
        await exchange.reply(200, msgspec.json.encode(self._answer(job.id, text, ending)))

    async def _submit(self, request: GenerateRequest) -> Job:
        """Submits without the worker's hint when it is full: other servers give none."""
        try:
            return await self._loop.submit(request)
        except Refused as refused:
            raise Refused(refused.outcome, "the queue is full", hopeless=True) from None

    def _request(self, asked: ChatRequest) -> GenerateRequest:
        return GenerateRequest(
            id=f"{self._prefix}-{next(self._numbers)}",
            tenant=TENANT,
            deadline_ms=NO_DEADLINE_MS,
            max_tokens=asked.max_tokens or asked.max_completion_tokens or DEFAULT_TOKENS,
            messages=[Message(message.role, _text(message.content)) for message in asked.messages],
            stream=False,
            ignore_eos=bool(asked.ignore_eos),
        )

    def _answer(self, id: str, text: str, done: Done) -> ChatCompletion:
        used = done.usage
        usage = Usage(used.prompt_tokens, used.completion_tokens, used.prompt_tokens + used.completion_tokens)
        choice = ChatChoice(0, AnswerMessage("assistant", text), done.finish_reason)
        return ChatCompletion(f"chatcmpl-{id}", int(time()), self._model, [choice], usage)


def _text(content: object) -> str:
    if not isinstance(content, str):
        raise BadInput("messages: these routes read text only", "messages")
    return content


def main() -> int:
    settings = load(WorkerSettings)
    return run(lambda: build(settings, lambda loop, api: OpenAiRoutes(loop, settings.announced_model).add_to(api)))


if __name__ == "__main__":
    raise SystemExit(main())
