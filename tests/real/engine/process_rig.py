"""What the tests of an engine's process share: loops to run on, hosts that end, and waiting for conditions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from services.contracts.generate import GenerateRequest
from services.worker.engine import Sequence, Step
from services.worker.engine_wire import Simulated
from services.worker.process import EngineProcess

ODD = (sys.executable, "-m", "tests.real.engine.odd_child")
START_WITHIN_S = 60.0
CLIENT_TIMEOUT_S = 60.0  # a test that would wait for ever fails after this


def run(scenario: Callable[[], Awaitable[None]], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None):
    async def main() -> None:
        async with asyncio.timeout(CLIENT_TIMEOUT_S):
            await scenario()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


@asynccontextmanager
async def odd(folder: Path, **fields: object) -> AsyncIterator[EngineProcess]:
    """A started host of the odd engine, stopped at the end."""
    executor = odd_host(folder, **fields)
    await executor.start()
    try:
        yield executor
    finally:
        await executor.stop()


def odd_host(folder: Path, **fields: object) -> EngineProcess:
    return EngineProcess(Simulated(model=str(folder), **fields), start_within_s=START_WITHIN_S, command=ODD)


def asking(id: str, tokens: int = 4, prompt: str = "one two three") -> GenerateRequest:
    return GenerateRequest(
        id=id, tenant="t", deadline_ms=60_000, max_tokens=tokens, prompt=prompt, ignore_eos=True, stream=False
    )


async def admitted(executor: EngineProcess, id: str, tokens: int = 4, prompt: str = "one two three") -> Sequence:
    sequence = await executor.prepare(asking(id, tokens, prompt))
    executor.admit(sequence)
    return sequence


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def serves(executor: EngineProcess, id: str = "again", tokens: int = 4) -> bool:
    """Whether a request gets its whole answer there."""
    sequence = await admitted(executor, id, tokens)
    steps: list[Step] = []
    while not (steps and steps[-1].finished):
        steps.append(await executor.step())
    texts = [text for step in steps for owner, text in step.tokens if owner is sequence]
    return len(texts) == tokens == sequence.completion_tokens and steps[-1].finished == [(sequence, "length")]


def is_gone(pid: int) -> bool:
    """No such process, or nothing left of it but its status, which only its parent may collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_buried(pid: int) -> bool:
    """Not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def ledger(folder: Path) -> list[str]:
    return (folder / "ledger").read_text().splitlines()
