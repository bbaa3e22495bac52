"""Every trick of an evil worker, through a real router: its client never gets a wrong answer as a whole one.

Beside the evil worker stands an honest one. What may come of each trick is in its row (`loadtests.faults.evil.tricks`):
the right answer, a refusal, or a stream that says that it was cut. Every prompt carries a nonce that the right answer
repeats, and the answer is compared to the last byte.
"""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest

from loadtests.faults.evil.row import BOTH, Row
from loadtests.faults.evil.tricks import ROWS
from loadtests.judging.answers import Verdict
from tests.evil.stand import HONEST, PLENTY_MS, SOON_MS, pair
from tests.virtual import run

CHAT, ASK = "/v1/chat/completions", "/ask"


def asked_as(row: Row) -> list[tuple[str, bool]]:
    """The surfaces a trick is played at: what is a trick of HTTP, or costs a deadline, at one."""
    paths = (CHAT,) if row.slow or row.kinds == BOTH else (CHAT, ASK)
    return [(path, stream) for path in paths for stream in (True, False)]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_no_client_takes_a_broken_answer_for_a_whole_one(row: Row, tmp_path: Path) -> None:
    async def main() -> None:
        await asyncio.gather(*(played(row, kind, folder) for kind, folder in folders.items()))

    folders = {kind: tmp_path / kind for kind in row.kinds}
    for folder in folders.values():
        folder.mkdir()
    run(main)


async def played(row: Row, kind: str, folder: Path) -> None:
    """A trick by a worker of one kind, told as a stream and as a whole; then somebody else's turn."""
    async with pair(row, kind, folder) as both:
        for path, stream in asked_as(row):
            deadline_ms = SOON_MS if row.slow else PLENTY_MS
            verdict, heard = await both.ask_evil(path, stream=stream, deadline_ms=deadline_ms)
            assert verdict is (row.streamed if stream else row.whole), f"{kind}, {path}, stream={stream}: {heard}"
        await both.until_both_are_up()
        _, verdict, heard = await both.ask(CHAT, stream=False)
        if verdict is not Verdict.RIGHT:  # it may have been the evil one's turn
            assert verdict is row.whole, f"{kind}: {heard}"
            _, verdict, heard = await both.ask(CHAT, stream=False)
        assert verdict is Verdict.RIGHT, f"{kind}: the next request is served: {heard}"


@pytest.mark.parametrize("kind", BOTH)
def test_the_same_worker_is_believed_when_it_is_honest(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(HONEST, kind, tmp_path) as both:
            for path, stream in product((CHAT, ASK), (True, False)):
                verdict, heard = await both.ask_evil(path, stream=stream, deadline_ms=PLENTY_MS)
                assert verdict is Verdict.RIGHT, heard

    run(main)
