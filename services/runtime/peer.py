"""The client of one request, and the moment it leaves.

The guard makes one for each request and hands it on as an ASGI extension; a handler asks it to be told. A server
without the guard (a test's) has none, and a client that never leaves stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

PEER_EXTENSION = "weir.peer"


class Peer:
    """The client of one request: `gone` once its connection is lost before the answer is complete."""

    __slots__ = ("_callbacks", "gone")

    def __init__(self) -> None:
        self.gone = False
        self._callbacks: list[Callable[[], object]] = []

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Call this once when the client leaves; at once if it has already left."""
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    def lost(self) -> None:
        """The connection is lost: tell everyone who asked, once."""
        self.gone = True
        while self._callbacks:
            self._callbacks.pop(0)()


def peer_of(scope: Any) -> Peer:
    """The peer of a request, by its ASGI scope."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    return extensions.get(PEER_EXTENSION) or Peer()
