"""What a reader does with a text, counted and not timed: the interpreter's instructions, and the bytes it hands to C.

Seen: every bytecode of every Python function below the call, the standard library's included; of a `Weighed` body, the
bytes that each of its own methods goes through (`count`, `find`, `replace`, `split`, `in`, a slice).
Not seen: what C code does inside: msgspec, httptools, libyaml, the JSON scanner of the standard library, methods of
other strings. Those are linear by what they are (each goes over its input once), or are bounded; regular expressions
are judged by `backtracking`. `docs/architecture/parsers.md` has the verdict for each reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

MOST_GROWTH = 2.2


class Weighed(bytes):
    """Bytes whose methods count what they go through, in `weight`, and give weighed bytes again."""

    weight = 0

    def _over(self, length: int) -> None:
        Weighed.weight += length

    def __contains__(self, part: Any) -> bool:
        self._over(len(self))
        return super().__contains__(part)

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(found, int):
            return found
        self._over(len(found))
        return Weighed(found)

    def count(self, *args: Any) -> int:
        self._over(len(self))
        return super().count(*args)

    def find(self, *args: Any) -> int:
        self._over(len(self) - (args[1] if len(args) > 1 else 0))
        return super().find(*args)

    def replace(self, *args: Any) -> Weighed:
        self._over(len(self))
        return Weighed(super().replace(*args))

    def split(self, *args: Any) -> list[bytes]:
        self._over(len(self))
        return super().split(*args)

    def translate(self, *args: Any, **named: Any) -> Weighed:
        self._over(len(self))
        return Weighed(super().translate(*args, **named))

    def strip(self, *args: Any) -> Weighed:
        self._over(len(self))
        return Weighed(super().strip(*args))

    def decode(self, *args: Any, **named: Any) -> str:
        self._over(len(self))
        return super().decode(*args, **named)


def steps(call: Callable[[], object]) -> int:
    """Instructions, and weighed bytes. An exception is an answer like any other."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def step(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
        return step

    Weighed.weight = 0
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Exception:
        pass
    finally:
        sys.settrace(before)
    return count + Weighed.weight


def assert_linear(read: Callable[[bytes], object], make: Callable[[int], bytes], sizes: tuple[int, ...]) -> None:
    """Each doubling costs at most 2.2 times as much; handing the text over counts for its length."""
    costs = []
    for size in sizes:
        text = make(size)
        costs.append(len(text) + steps(lambda text=text: read(Weighed(text))))  # type: ignore[misc]
    growth = [after / before for before, after in pairwise(costs)]
    assert max(growth) <= MOST_GROWTH, f"steps {costs} for sizes {sizes}"
