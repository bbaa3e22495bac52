"""The model's own process: the same vectors, and what happens when it dies, fails, or cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from services.retrieval.minilm import MiniLM, ModelUnusable, find_model
from services.retrieval.modelprocess import ModelFailed, ModelProcess

TEXTS = ["A weir holds a river at its level.", "Bread needs salt."]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return find_model()
    except ModelUnusable as error:
        pytest.skip(str(error))


def with_model(folder: Path, scenario: Callable[[ModelProcess, int], Awaitable[None]]) -> int:
    """Its pid, after it was stopped."""

    async def main() -> int:
        before = set(psutil.Process().children())
        model = ModelProcess(folder, threads=1)
        hello = await model.load()
        assert hello.fingerprint
        (child,) = set(psutil.Process().children()) - before
        try:
            await scenario(model, child.pid)
        finally:
            await model.stop()
        return child.pid

    return asyncio.run(main())


def test_it_gives_the_vectors_that_the_model_gives_and_ends_when_it_is_stopped(folder: Path) -> None:
    async def scenario(model: ModelProcess, pid: int) -> None:
        here = MiniLM(folder)
        ids = [here.tokenize(text) for text in TEXTS]
        there = await model.embed(TEXTS)
        assert np.array_equal(np.stack([vector for vector, _ in there]), here.embed(ids))
        assert [tokens for _, tokens in there] == [len(each) for each in ids]

    assert not psutil.pid_exists(with_model(folder, scenario))


def test_one_that_has_died_fails_what_was_asked_and_is_started_anew(folder: Path) -> None:
    async def scenario(model: ModelProcess, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ModelFailed, match="has ended"):
            await model.embed(TEXTS)
        assert len(await model.embed(TEXTS)) == 2

    with_model(folder, scenario)


def test_a_caller_that_leaves_in_the_middle_does_not_leave_its_answer_to_the_next(folder: Path) -> None:
    async def scenario(model: ModelProcess, pid: int) -> None:
        first = asyncio.create_task(model.embed(TEXTS))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        assert len(await model.embed(TEXTS[:1])) == 1

    with_model(folder, scenario)


def test_a_model_that_cannot_be_used_says_why(tmp_path: Path, folder: Path) -> None:
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "gpt"}')
    (tmp_path / "model.safetensors").write_bytes(b"")

    async def main() -> None:
        with pytest.raises(ModelUnusable, match="model_type is 'gpt'"):
            await ModelProcess(tmp_path, threads=1).load()

    asyncio.run(main())
