"""The package of OpenAI, as its users run it, against the router."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from services.contracts.generate import GenerateRequest
from services.router.serving import response as sending
from services.runtime.http import Exchange
from services.runtime.serve import FineClockLoop
from tests.router.rig import FakeWorker, Stand, answer, cut_after, standing
from tests.router.serving.test_streams import words
from tests.runtime.rig import until
from tests.virtual import run


class Gate:
    """A script that lets the test say when the worker speaks, and with whose words."""

    def __init__(self, script: Any = answer) -> None:
        self.opened = asyncio.Event()
        self.script = script

    async def __call__(self, exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        await self.opened.wait()
        await self.script(exchange, request, worker)


@pytest.fixture
def soon_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "KEEP_ALIVE_S", 0.02)


def package(stand: Stand, retries: int = 0) -> openai.AsyncOpenAI:
    base = f"http://127.0.0.1:{stand.router.bound_port}/v1"
    return openai.AsyncOpenAI(base_url=base, api_key="any", max_retries=retries, timeout=20)


async def text_of(client: openai.AsyncOpenAI) -> str:
    stream = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    said = ""
    async for chunk in stream:
        for choice in chunk.choices:
            said += choice.delta.content or ""
    return said


@pytest.mark.usefixtures("soon_awake")
def test_the_openai_package_reads_comments_streams_and_failures() -> None:
    async def main() -> None:
        gate = Gate()
        async with standing(FakeWorker(gate)) as stand, package(stand) as client:
            asking = asyncio.create_task(text_of(client))
            await until(lambda: stand.workers[0].running == 1)
            await asyncio.sleep(0.1)
            gate.opened.set()
            assert await asking == "A weir holds."
            stand.workers[0].script = cut_after(2)
            with pytest.raises(openai.APIError) as cut:
                await text_of(client)
            assert (cut.value.code, cut.value.type) == ("upstream_failed", "upstream_error")
            assert not isinstance(cut.value, openai.APIConnectionError)

    run(main, FineClockLoop)


def test_the_openai_package_raises_what_its_users_expect_and_comes_back_when_it_is_told() -> None:
    async def main() -> None:
        one = standing(FakeWorker(words(0.02, count=20), slots=1))
        async with one as stand, package(stand) as client, package(stand, retries=5) as patient:
            holding = asyncio.create_task(text_of(client))
            await until(lambda: stand.workers[0].running == 1)
            with pytest.raises(openai.RateLimitError) as refused:
                await text_of(client.with_options(default_headers={"prefer": "wait=0"}))
            assert refused.value.code == "yield"
            asked = patient.with_options(default_headers={"prefer": "wait=0"})
            assert await text_of(asked) == "xxxx" * 20
            await holding
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="none", messages=[{"role": "user", "content": "hi"}])
            counted = await stand.counted()
            assert (counted["served"], counted["model_not_found"]) == (2, 1)
            assert counted["yield"] >= 2

    run(main, FineClockLoop)
