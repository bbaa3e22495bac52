"""A set in the order of insertion. Python's sets change their order with each process, and with it what code does
first.
"""

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
