"""The keys of the fake Valkey with their expiry, and the script that the cache runs on them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from services.retrieval.cache import UNLESS_FULLER

NO_END, NO_KEY = -1, -2
FULLER_SHA = hashlib.sha1(UNLESS_FULLER.encode(), usedforsecurity=False).hexdigest()


@dataclass(slots=True)
class Held:
    """A value (bytes or a list of bytes) and its expiry on the loop's clock, if any."""

    value: bytes | list[bytes]
    ends: float | None = None


class Keyspace:
    """One database. `clock` is in seconds. Memory is unbounded: nothing is evicted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.scripts: set[str] = set()
        self._clock = clock
        self._held: dict[bytes, Held] = {}  # least recently used first

    def flush(self) -> None:
        """Remove all keys; scripts stay."""
        self._held.clear()

    def forget(self) -> None:
        """The process ended: remove keys and scripts."""
        self.flush()
        self.scripts.clear()

    def find(self, key: bytes, *, ended_too: bool = False) -> Held | None:
        """The value of a key. `ended_too` includes an expired value that has not been removed yet."""
        held = self._held.pop(key, None)
        if held is None or (held.ends is not None and held.ends <= self._clock() and not ended_too):
            return None
        self._held[key] = held
        return held

    def keep(self, key: bytes, value: bytes | list[bytes], life_ms: int | None = None) -> None:
        """Set a key for `life_ms`, or without expiry."""
        self._held.pop(key, None)
        self._held[key] = Held(value, None if life_ms is None else self._clock() + life_ms / 1000)

    def expire(self, key: bytes, life_ms: int) -> bool:
        """Set the expiry. False if the key does not exist."""
        held = self.find(key)
        if held is not None:
            held.ends = self._clock() + life_ms / 1000
        return held is not None

    def left_ms(self, key: bytes) -> int:
        """The remaining life in ms: -1 without expiry, -2 without a key."""
        held = self.find(key)
        if held is None:
            return NO_KEY
        return NO_END if held.ends is None else max(0, round((held.ends - self._clock()) * 1000))

    def another(self, key: bytes) -> bytes | None:
        """The value of another key, the most recently used one."""
        for other in reversed(self._held):
            value = self._held[other].value
            if other != key and isinstance(value, bytes):
                return value
        return None

    def unless_fuller(
        self, key: bytes, value: bytes, life_ms: bytes, version: bytes, effort: bytes, share: bytes
    ) -> int:
        """`UNLESS_FULLER` in Python: store, unless a fresh entry took more effort."""
        try:
            there = self._is_fuller(key, float(version), float(effort), float(share))
        except (msgspec.DecodeError, TypeError, LookupError, ValueError):
            there = False  # not one of our entries: Lua's pcall catches it
        if there:
            return 0
        self.keep(key, value, int(life_ms))
        return 1

    def _is_fuller(self, key: bytes, version: float, effort: float, share: float) -> bool:
        held = self.find(key)
        if held is None or not isinstance(held.value, bytes):
            return False
        entry: Any = msgspec.msgpack.decode(held.value)
        age_s = entry[4] - self.left_ms(key) / 1000
        return bool(entry[6] > effort and entry[2] >= version and age_s < entry[3] * share)
