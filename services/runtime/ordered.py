"""A set in the order in which its members came.

A plain set of objects is walked in the order of their addresses, and one of strings in an order that changes with each
process. What walks one and acts on each member would act in another order at every start.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """Walked in the order in which its members were added. Hot paths use the dictionary that it is."""

    __slots__ = ()

    def add(self, member: T) -> None:
        """One more, at the end; one that is a member keeps its place."""
        self[member] = None

    def discard(self, member: T) -> None:
        """One less, if it is a member."""
        self.pop(member, None)
