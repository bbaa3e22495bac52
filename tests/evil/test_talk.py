"""What an evil worker says where it plays no trick: an answer that nothing is wrong with."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

import pytest

from loadtests.faults.evil.framing import compressed
from loadtests.faults.evil.talk import Talk
from loadtests.judging.nonces import nonce, prompt, right, tokens

NONCE = nonce(7)
ALL = len(tokens(right(NONCE)))


def talk(kind: str, most: int, *, stream: bool) -> Talk:
    asked = {"prompt": prompt(NONCE), "max_tokens": most, "stream": stream}
    return Talk(cast(Any, None), kind, "weir-sim", b"id", asked)


@pytest.mark.parametrize("kind", ["weir", "openai"])
@pytest.mark.parametrize(("most", "length", "reason"), [(3, 3, "length"), (ALL, ALL, "stop"), (500, ALL, "stop")])
def test_the_right_answer_is_no_longer_than_it_may_be_and_says_why_it_ends(
    kind: str, most: int, length: int, reason: str
) -> None:
    for stream in (True, False):
        made = talk(kind, most, stream=stream)
        said = b"".join(made.pieces).decode()
        assert made.usage["completion_tokens"] == length
        assert f'"finish_reason": "{reason}"' in said
        whole = "".join(tokens(right(NONCE))[:length])
        if stream:
            assert len(made.words) == length
        else:
            assert json.dumps(whole) in said


class Overheard(Talk):
    """Whose words go nowhere, and are kept."""

    async def send(self, *data: bytes) -> None:
        self.earlier += b"".join(data)


def test_a_compressed_answer_does_not_tell_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a seed of the world that has one would have another digest every second."""
    said = []
    for now in (1.0, 1e9):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        heard = Overheard(cast(Any, None), "weir", "weir-sim", b"id", {"prompt": prompt(NONCE), "max_tokens": 500})
        asyncio.run(compressed(heard))
        said.append(heard.earlier)
    assert said[0] == said[1]
