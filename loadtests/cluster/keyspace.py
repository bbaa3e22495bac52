"""The keys of the fake Valkey: values that end by themselves, in bounded memory, and the commands over them.

Memory is counted as Valkey's is bounded: before a command that may need more, the least recently used keys give way
(`allkeys-lru`) until what is used is at most `maxmemory`; where nothing may give way (`noeviction`), or nothing is left
to, the command is refused with `OOM`. So at most one value more than `maxmemory` is ever held.

A script is no Lua here: `evaluated` knows the one that retrieval's cache runs, by its text, and does in Python what it
says. Any other is refused as one that does not compile.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from loadtests.cluster.resp import OK, Answer, Failure
from services.retrieval.cache import UNLESS_FULLER

BASE_BYTES = 1_000_000  # a real server uses as much before it holds anything
KEY_BYTES = 96  # of a key beside its name and its value, as measured of Valkey 9
NO_END, NO_KEY = -1, -2
POLICIES = ("allkeys-lru", "noeviction")
FULLER_SHA = hashlib.sha1(UNLESS_FULLER.encode(), usedforsecurity=False).hexdigest()

WRONG_TYPE = Failure("WRONGTYPE Operation against a key holding the wrong kind of value")
SYNTAX = Failure("ERR syntax error")
NOT_A_NUMBER = Failure("ERR value is not an integer or out of range")
NO_SCRIPT = Failure("NOSCRIPT No matching script.")
FULL = Failure("OOM command not allowed when used memory > 'maxmemory'.")


@dataclass(slots=True)
class Held:
    """What is kept under a key: bytes, or a list of them; and when it ends on the loop's clock, if it does."""

    value: bytes | list[bytes]
    ends: float | None = None

    @property
    def size(self) -> int:
        return len(self.value) if isinstance(self.value, bytes) else sum(map(len, self.value))


class Keyspace:
    """One database. `clock` is in seconds; `most_bytes` and `policy` are `maxmemory` and `maxmemory-policy`."""

    def __init__(self, clock: Callable[[], float], *, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.policy = POLICIES[0]
        self.scripts: dict[str, str] = {}
        self.evicted = 0
        self._clock = clock
        self._held: OrderedDict[bytes, Held] = OrderedDict()  # the least recently used first
        self._used = BASE_BYTES

    @property
    def used(self) -> int:
        """Bytes, as counted."""
        return self._used

    def __len__(self) -> int:
        return len(self._held)

    def flush(self) -> None:
        """All keys are lost; scripts stay."""
        self._held.clear()
        self._used = BASE_BYTES

    def forget(self) -> None:
        """The process has ended: keys and scripts are lost."""
        self.flush()
        self.scripts.clear()

    def find(self, key: bytes, *, ended_too: bool = False) -> Held | None:
        """What is kept under this key; `ended_too`: even if its time is over, as long as nobody has noticed."""
        held = self._held.get(key)
        if held is None:
            return None
        if held.ends is not None and held.ends <= self._clock() and not ended_too:
            self.remove(key)
            return None
        self._held.move_to_end(key)
        return held

    def keep(self, key: bytes, value: bytes | list[bytes], ends: float | None = None) -> None:
        """In the place of whatever was there."""
        self.remove(key)
        held = self._held[key] = Held(value, ends)
        self._used += KEY_BYTES + len(key) + held.size

    def remove(self, key: bytes) -> bool:
        """False: it was not there."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        self._used -= KEY_BYTES + len(key) + held.size
        return True

    def another(self, key: bytes) -> bytes | None:
        """The value of the other key that was used last."""
        for other in reversed(self._held):
            value = self._held[other].value
            if other != key and isinstance(value, bytes):
                return value
        return None

    def make_room(self) -> bool:
        """Before a command that may need memory: False where there is none to be had."""
        while self._used > self.most_bytes and self.policy != "noeviction" and self._held:
            self.remove(next(iter(self._held)))
            self.evicted += 1
        return self._used <= self.most_bytes

    def left_ms(self, key: bytes) -> int:
        """What is left of a key's life: -1 for one without an end, -2 for none."""
        held = self.find(key)
        if held is None:
            return NO_KEY
        return NO_END if held.ends is None else max(0, round((held.ends - self._clock()) * 1000))

    def value(self, key: bytes) -> Answer:
        """The answer to GET."""
        held = self.find(key)
        if held is None:
            return None
        return held.value if isinstance(held.value, bytes) else WRONG_TYPE

    def set(self, key: bytes, value: bytes, *options: bytes) -> Answer:
        """SET with EX, PX, NX and XX."""
        left = [option.upper() for option in options]
        unit_s = 0.0
        ends = None
        only: set[bytes] = set()
        while left:
            option = left.pop(0)
            if option in (b"NX", b"XX"):
                only.add(option)
            elif option in (b"EX", b"PX") and left and not unit_s:
                unit_s = 1.0 if option == b"EX" else 0.001
                if not left[0].lstrip(b"-").isdigit():
                    return NOT_A_NUMBER
                if int(left[0]) <= 0:
                    return Failure("ERR invalid expire time in 'set' command")
                ends = self._clock() + int(left.pop(0)) * unit_s
            else:
                return SYNTAX
        if len(only) == 2:
            return SYNTAX
        if only and (self.find(key) is None) is (only == {b"XX"}):
            return None
        self.keep(key, value, ends)
        return OK

    def expire(self, key: bytes, ms: bytes) -> Answer:
        """PEXPIRE: 1 where there was such a key."""
        if not ms.lstrip(b"-").isdigit():
            return NOT_A_NUMBER
        held = self.find(key)
        if held is None:
            return 0
        if int(ms) <= 0:
            self.remove(key)
        else:
            held.ends = self._clock() + int(ms) / 1000
        return 1

    def push(self, key: bytes, *values: bytes) -> Answer:
        """LPUSH: how many there are by then."""
        held = self.find(key)
        before = held.value if held else []
        if isinstance(before, bytes):
            return WRONG_TYPE
        whole = [*reversed(values), *before]
        self.keep(key, whole, held.ends if held else None)
        return len(whole)

    def evaluated(self, sha: str, arguments: tuple[bytes, ...]) -> Answer:
        """EVALSHA: a number of keys, the keys, and what follows them."""
        if sha not in self.scripts:
            return NO_SCRIPT
        if not arguments or not arguments[0].isdigit():
            return NOT_A_NUMBER
        number = int(arguments[0])
        if number > len(arguments) - 1:
            return Failure("ERR Number of keys can't be greater than number of args")
        return self._unless_fuller(arguments[1 : 1 + number], arguments[1 + number :])

    def loaded(self, script: bytes) -> Answer:
        """SCRIPT LOAD: its digest. Refuses any but the cache's."""
        sha = hashlib.sha1(script, usedforsecurity=False).hexdigest()
        if sha != FULLER_SHA:
            return Failure("ERR Error compiling script: this server knows the script of retrieval's cache alone")
        self.scripts[sha] = script.decode()
        return sha

    def _unless_fuller(self, keys: tuple[bytes, ...], arguments: tuple[bytes, ...]) -> Answer:
        """What `UNLESS_FULLER` says in Lua: keep it, unless something fresh is there that took more effort."""
        (key,), (value, life_ms, version, effort, share) = keys, arguments
        try:
            there = self._is_fuller(key, float(version), float(effort), float(share))
        except (msgspec.DecodeError, TypeError, LookupError, ValueError):
            there = False  # no entry of ours: Lua's pcall has caught it
        if there:
            return 0
        if not self.make_room():
            return FULL
        kept = self.set(key, value, b"PX", life_ms)
        return kept if isinstance(kept, Failure) else 1

    def _is_fuller(self, key: bytes, version: float, effort: float, share: float) -> bool:
        entry: Any = msgspec.msgpack.decode(_bytes(self.value(key)))
        held: float = entry[6]
        age_s = entry[4] - self.left_ms(key) / 1000
        return bool(held > effort and entry[2] >= version and age_s < entry[3] * share)


def _bytes(answer: Answer) -> bytes:
    if not isinstance(answer, bytes):
        raise TypeError
    return answer
