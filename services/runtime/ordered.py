"""A set that is iterated in the order of insertion.

Python iterates a set of objects by address and a set of strings by a hash that changes with each process, so code that
acts on each member would act in another order at every start.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class OrderedSet(dict[T, None]):
    """A set as a dictionary without values. Hot paths use the dictionary directly."""

    __slots__ = ()

    def add(self, member: T) -> None:
        """Add a member at the end; an existing one keeps its place."""
        self[member] = None

    def discard(self, member: T) -> None:
        """Remove a member, if it is one."""
        self.pop(member, None)
