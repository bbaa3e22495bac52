"""The keys of the fake Valkey: values that end by themselves, and the script that the cache runs over them."""

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
    """What is kept under a key: bytes, or a list of them; and when it ends on the loop's clock, if it does."""

    value: bytes | list[bytes]
    ends: float | None = None


class Keyspace:
    """One database. `clock` is in seconds. Memory has no bound: nothing is evicted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.scripts: set[str] = set()
        self._clock = clock
        self._held: dict[bytes, Held] = {}  # the least recently used first

    def flush(self) -> None:
        """All keys are lost; scripts stay."""
        self._held.clear()

    def forget(self) -> None:
        """The process has ended: keys and scripts are lost."""
        self.flush()
        self.scripts.clear()

    def find(self, key: bytes, *, ended_too: bool = False) -> Held | None:
        """What is kept under this key; `ended_too`: even if its time is over, as long as nobody has noticed."""
        held = self._held.pop(key, None)
        if held is None or (held.ends is not None and held.ends <= self._clock() and not ended_too):
            return None
        self._held[key] = held
        return held

    def keep(self, key: bytes, value: bytes | list[bytes], life_ms: int | None = None) -> None:
        """In the place of whatever was there; for so long, or without an end."""
        self._held.pop(key, None)
        self._held[key] = Held(value, None if life_ms is None else self._clock() + life_ms / 1000)

    def expire(self, key: bytes, life_ms: int) -> bool:
        """From now on it lives so long. False: there is no such key."""
        held = self.find(key)
        if held is not None:
            held.ends = self._clock() + life_ms / 1000
        return held is not None

    def left_ms(self, key: bytes) -> int:
        """What is left of a key's life: -1 for one without an end, -2 for none."""
        held = self.find(key)
        if held is None:
            return NO_KEY
        return NO_END if held.ends is None else max(0, round((held.ends - self._clock()) * 1000))

    def another(self, key: bytes) -> bytes | None:
        """The value of the other key that was used last."""
        for other in reversed(self._held):
            value = self._held[other].value
            if other != key and isinstance(value, bytes):
                return value
        return None

    def unless_fuller(
        self, key: bytes, value: bytes, life_ms: bytes, version: bytes, effort: bytes, share: bytes
    ) -> int:
        """What `UNLESS_FULLER` says in Lua: keep it, unless something fresh is there that took more effort."""
        try:
            there = self._is_fuller(key, float(version), float(effort), float(share))
        except (msgspec.DecodeError, TypeError, LookupError, ValueError):
            there = False  # no entry of ours: Lua's pcall has caught it
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
