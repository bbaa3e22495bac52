"""A whole worker with a real model: HTTP here, the engine in a process of its own, the tiny model in it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from services.core.outcome import Outcome
from services.runtime.serve import Process, running
from services.worker.app import build
from services.worker.config import WorkerSettings
from services.worker.engine_executor import EngineUnusable

pytest.importorskip("torch", reason="the extra `torch` is not installed: make torch")
Scenario = Callable[[httpx2.AsyncClient, Process], Awaitable[None]]


def served(models: Path, scenario: Scenario, **settings: Any) -> None:
    async def main() -> None:
        chosen = {"engine": "torch", "model_cache_dir": str(models), "log_level": "ERROR", "drain_timeout_s": 2.0}
        process = build(WorkerSettings(_env_file=None, worker_port=0, metrics_port=0, **{**chosen, **settings}))
        try:
            async with running(process):
                base = f"http://127.0.0.1:{process.bound_port}"
                async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
                    await scenario(client, process)
        finally:
            process.log.close()

    asyncio.run(main())


def ask(id: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What holds a river at its level?"}]
    return {"id": id, "tenant": "t", "deadline_ms": 60_000, "max_tokens": 24, "messages": messages, **fields}


async def until(condition: Callable[[], bool], client: httpx2.AsyncClient | None = None) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_a_real_model_streams_what_it_answers_whole_and_counts_it_exactly(models: Path):
    async def scenario(client: httpx2.AsyncClient, process: Process) -> None:
        status = (await client.get("/status")).json()
        assert (status["engine"], status["models"], status["slots"]) == ("torch", ["weir-tiny"], 8)
        assert status["step_ms"] > 0
        assert status["prefill_ms_per_token"] > 0
        ready = (await client.get("/health/ready")).json()
        assert ready["model"] == "weir-tiny"
        streamed = await client.post("/generate", json=ask("a", temperature=0))
        *tokens, done = [json.loads(line) for line in streamed.text.splitlines()]
        whole = (await client.post("/generate", json=ask("b", temperature=0, stream=False))).json()
        assert "".join(token["text"] for token in tokens) == whole["text"]
        assert (done["event"], done["usage"]) == ("done", whole["usage"])
        assert done["usage"]["completion_tokens"] <= 24
        seeded = [
            (await client.post("/generate", json=ask(str(number), seed=7, stream=False))).json()["text"]
            for number in range(2)
        ]
        assert seeded[0] == seeded[1] != whole["text"]
        answers = await asyncio.gather(
            *(client.post("/generate", json=ask(f"m{number}", temperature=0, stream=False)) for number in range(12))
        )
        assert {answer.json()["text"] for answer in answers} == {whole["text"]}
        long = await client.post("/generate", json=ask("long", messages=None, prompt="river " * 4000))
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")

    served(models, scenario)


def test_an_engine_that_is_killed_fails_what_ran_and_is_made_again(models: Path):
    async def scenario(client: httpx2.AsyncClient, process: Process) -> None:
        loop = process.start.__self__
        endless = ask("a", max_tokens=1500, ignore_eos=True, stream=False)
        running_one = asyncio.create_task(client.post("/generate", json=endless))
        await until(lambda: loop.running == 1)
        os.kill(loop.executor.pid, signal.SIGKILL)
        text_state = await running_one
        assert (text_state.status_code, text_state.json()["error"]["code"]) == (500, "engine_died")
        assert "SIGKILL" in text_state.json()["error"]["message"]
        assert (await client.get("/status")).status_code == 503
        await until(lambda: loop.alive)
        assert (await client.post("/generate", json=ask("a", stream=False))).json()["event"] == "done"

    served(models, scenario)


def test_a_client_that_leaves_frees_its_slot_and_no_more_is_computed_for_it(models: Path):
    async def scenario(client: httpx2.AsyncClient, process: Process) -> None:
        loop = process.start.__self__
        async with client.stream("POST", "/generate", json=ask("a", max_tokens=1500, ignore_eos=True)) as stream:
            lines = stream.aiter_lines()
            for _ in range(5):
                await anext(lines)
            sequence = next(iter(loop._running))
        await until(lambda: loop.running == 0)
        computed = sequence.completion_tokens
        assert (await client.post("/generate", json=ask("a", stream=False))).json()["event"] == "done"
        assert sequence.completion_tokens <= computed + 1, "more than the step that ran when it left"
        assert loop.free_tokens == loop.executor.kv_tokens
        assert loop._metrics.requests[Outcome.CLIENT_GONE]._value.get() == 1

    served(models, scenario, max_batch_size=1)


def test_a_model_that_cannot_be_had_is_one_clear_sentence_at_the_start(models: Path, tmp_path: Path):
    async def never(client: httpx2.AsyncClient, process: Process) -> None:
        raise AssertionError("it started")

    with pytest.raises(EngineUnusable, match=r"config\.json|no model"):
        served(models, never, model_id=str(tmp_path))
