"""The operations of the clients, and what each must find: one table for every client that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.real.clients.recorder import MODEL as OTHER
from tests.real.clients.recorder import RIVER, WEIR
from tests.real.clients.scripts.common import PICTURE, STREAMS
from tests.real.clients.stand import OWN

Check = Callable[[Any], None]


def exactly(wanted: Any) -> Check:
    def check(found: Any) -> None:
        assert found == wanted

    return check


def an_answer(found: Any) -> None:
    assert found["text"], found
    assert found["finish"] in ("stop", "length", "end_turn", "max_tokens")
    prompt, completion = found["usage"]
    assert prompt > 0
    assert 0 < completion <= 8


def a_stream(found: Any) -> None:
    assert found["text"], found
    assert found["pieces"] > 1
    assert all(found["usage"])


def a_call(found: Any) -> None:
    assert [[name, arguments] for name, arguments in found] == [["level_of", RIVER]]


def raises(name: str, *words: str, retry: bool = False) -> Check:
    """The client's own exception of this name, whose message has these words; `retry`: with Retry-After."""

    def check(found: Any) -> None:
        assert isinstance(found, dict), found
        assert name in found["raised"], found
        assert all(word in found["message"] for word in words), found["message"]
        assert not retry or int(found["retry_after"]) > 0, found

    return check


LENGTHS = exactly([[3.0, 0.0], [5.0, 0.0]])
CHAT = "POST /v1/chat/completions"

CHECKS: Mapping[str, Check] = {
    "models": lambda found: exactly([OTHER, OWN])(sorted(found)),
    "model": exactly(OWN),
    "chat": an_answer,
    "chat_async": an_answer,
    "chat_stream": a_stream,
    "completion": an_answer,
    "bridge": an_answer,
    "batch": exactly([True] * 5),
    "half_left": exactly({"complete": STREAMS // 2, "left": STREAMS // 2}),
    "tools": a_call,
    "tools_stream": a_call,
    "parsed": exactly(WEIR),
    "several": exactly(["answer 0", "answer 1"]),
    "picture": exactly(f"a picture of {len(PICTURE)} characters"),
    "prompts": exactly(["answer to one", "answer to two"]),
    "token_ids": exactly(["answer to [1, 2, 3]", "answer to [4]"]),
    "vectors": LENGTHS,
    "vectors_of_ids": lambda found: exactly([1.0, 1.0])([by_ids for _, by_ids in found]),
    "limited": raises("RateLimitError", "rate", retry=True),
    "bad": raises("BadRequestError", "tokens", ">= 1"),
    "beyond_own": raises("BadRequestError", "n:"),
    "no_key": raises("AuthenticationError"),
    "no_model": raises("NotFoundError", "none"),
    "responses": raises("NotFoundError", CHAT),
    "without_v1": raises("NotFoundError", "base_url"),
    "messages": raises("NotFoundError", CHAT),
    "count_tokens": raises("NotFoundError", CHAT),
}
