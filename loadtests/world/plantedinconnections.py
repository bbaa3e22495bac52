"""Bugs that are planted in the governor, and where connections are paused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.governor.gate import Gate, Place
from services.governor.protocol import Conversation
from services.governor.server import _Connection as GovernorConnection
from services.runtime.connection import Connection
from services.runtime.keepalive import _Connection as Upstream

Planted = Iterator[tuple[Any, str, Any]]


def governor_slot_kept() -> Planted:
    give_back = Place.give_back

    def forgetful(self: Place, seconds: float | None = None) -> None:
        if seconds is not None:
            give_back(self, seconds)

    yield Place, "give_back", forgetful


def governor_answers_another() -> Planted:
    write = GovernorConnection._write

    def astray(self: GovernorConnection, data: bytes) -> None:
        newest = next(reversed(list(self._server.connections)), self)
        write(newest if b'"status":"done"' in data else self, data)

    yield GovernorConnection, "_write", astray


def governor_bytes_without_a_bound() -> Planted:
    def generous(self: Gate, more_bytes: int, of_this_connection: int) -> bool:
        self.held_bytes += more_bytes
        return True

    yield Gate, "hold", generous


def governor_cap_not_asked() -> Planted:
    def taken(self: Gate) -> Place:
        self._slots.inflight += 1
        self._slots.taken_total += 1
        return Place(self)

    yield Gate, "try_take", taken


def governor_counts_who_is_back() -> Planted:
    def never(self: Conversation, job: Any) -> None:
        job.told = False

    yield Conversation, "_back", never


def upstream_not_resumed() -> Planted:
    def sleepy(self: Upstream) -> bytes:
        data = b"".join(self.pieces)
        self.pieces.clear()
        self.buffered_bytes = 0
        return data

    yield Upstream, "take", sleepy


def client_not_resumed() -> Planted:
    def deaf(self: Connection) -> None:
        self.behind = False

    yield Connection, "resume_writing", deaf
