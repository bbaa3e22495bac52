"""A set in the order of insertion. The order of Python's sets differs between processes."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """A set as a dictionary without values. Hot paths use the dictionary directly."""

    __slots__ = ()

    def add(self, member: T) -> None:
        self[member] = None

    def discard(self, member: T) -> None:
        self.pop(member, None)
