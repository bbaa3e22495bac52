"""What the scripts of all clients share: run the operations that were asked for, and print what each found, as JSON.

    python SCRIPT.py '{"base_url": ..., "key": ..., "limited_key": ..., "own": ..., "other": ..., "operations": [...]}'

`own` is a model of Weir's own workers, `other` that of an OpenAI-compatible server behind Weir. An operation that
raises has found the exception.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

HELLO = "Say something about a weir."
PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAYAAAAf8/9hAAAAAElFTkSuQmCC"
STREAMS = 40
"""At once; every other one is left after its first piece."""


class Given(NamedTuple):
    base_url: str
    key: str
    limited_key: str
    own: str
    other: str

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")


Operations = Mapping[str, Callable[[Given], Any]]


def main(operations: Operations) -> None:
    given = json.loads(sys.argv[1])
    wanted = given.pop("operations")
    print(json.dumps({name: _found(operations[name], Given(**given)) for name in wanted}))


def _found(operation: Callable[[Given], Any], given: Given) -> Any:
    try:
        found = operation(given)
        return asyncio.run(found) if inspect.iscoroutine(found) else found
    except Exception as error:
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return {
            "raised": [one.__name__ for one in type(error).__mro__],
            "message": str(error)[:2000],
            "retry_after": headers.get("retry-after"),
        }


async def half_are_left(stream: Callable[[int], Any]) -> dict[str, int]:
    """Open STREAMS streams of texts at once and leave every other one after its first piece.

    `stream(number)` is an async generator of pieces, which closes its connection when it is closed.
    """

    async def one(number: int) -> str:
        pieces = stream(number)
        try:
            text = ""
            async for piece in pieces:
                text += piece
                if number % 2:
                    return "left"
            return "complete" if text else "empty"
        finally:
            await pieces.aclose()

    ends = await asyncio.gather(*(one(number) for number in range(STREAMS)))
    return {end: ends.count(end) for end in set(ends)}


def asked_again(ask: Callable[[], Any]) -> None:
    """A tenant with a rate of one request in ten seconds asks three times."""
    for _ in range(3):
        ask()
