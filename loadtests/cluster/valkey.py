"""A fake Valkey that speaks RESP 3 over `loop.create_server`, so that the real client connects over a socket.

The client library, its pool, its parser and `services.retrieval.cache` run unchanged. Its only clock is the loop's. It
knows the commands of the cache and its tests: HELLO 3, CLIENT, PING, GET, SET with PX, PTTL, PEXPIRE, LPUSH (of a new
list), SCRIPT LOAD and EVALSHA of the cache's one script. Others are unknown commands. tests/contract runs the same
checks on it and a real server.

Not covered: other commands, RESP 2, passwords, other databases, MULTI, replication, Lua as a language, bounded memory
(`refuses` simulates a full server), and slowness with large answers.

Its faults, each an attribute or a call, at any time:

    slow_s            delays every answer; answers keep their order
    frozen            reads and sends nothing; connections are still accepted, as by a kernel for a stopped process
    refuses           `LOADING` all but the greeting, `OOM` and `READONLY` what writes
    lies              false answers about a key: see `Lie`
    cuts_after        closes connections after this many bytes of an answer
    hang_up()         closes every connection
    lose_everything() removes every key
    stop(), start()   the process has ended: no keys, scripts, connections or listener
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from loadtests.cluster.keyspace import FULLER_SHA, Keyspace
from loadtests.cluster.resp import OK, Answer, BadCommand, Command, CommandReader, Failure, Simple, encoded
from services.retrieval.cache import UNLESS_FULLER

VERSION = "9.1.0"
MAX_CONNECTIONS = 10_000
GARBAGE_BYTES = 100
WRONG_TYPE = Failure("WRONGTYPE Operation against a key holding the wrong kind of value")
SYNTAX = Failure("ERR syntax error")


class Refusal(StrEnum):
    """Errors of a server that answers."""

    LOADING = "LOADING Valkey is loading the dataset in memory"
    OOM = "OOM command not allowed when used memory > 'maxmemory'."
    READONLY = "READONLY You can't write against a read only replica."


class Lie(StrEnum):
    """False answers of GET."""

    ANOTHERS = "the value of another key, the one that was used last"
    TRUNCATED = "the first half of the value"
    GARBAGE = "bytes that nobody has stored"
    ENDED = "a value whose time is over, with nothing left of its life"
    NO_PROTOCOL = "bytes that are no answer in RESP"


class FakeValkey:
    """One server at one address. `port` 0 takes any port, on a loop with real sockets."""

    def __init__(self, host: str = "127.0.0.1", port: int = 6379, *, rng: random.Random | None = None) -> None:
        self.host = host
        self.port = port
        self.keys = Keyspace(self._now)
        self.slow_s = 0.0
        self.refuses: Refusal | None = None
        self.lies: Lie | None = None
        self.cuts_after: int | None = None
        self.accepted = self.commands = 0
        self.connections: set[_Connection] = set()
        self._rng = rng or random.Random(0)
        self._frozen = False
        self._loop: asyncio.AbstractEventLoop | None = None  # calls may come from outside of it
        self._server: asyncio.AbstractServer | None = None

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def frozen(self) -> bool:
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        """After a thaw, pending commands are executed in the order of connections."""
        self._frozen = frozen
        if not frozen:
            for connection in sorted(self.connections, key=lambda each: each.number):
                connection.go_on()

    async def start(self) -> None:
        """Listen, with no keys."""
        self._loop = asyncio.get_running_loop()
        server = await self._loop.create_server(lambda: _Connection(self), self.host, self.port)
        self._server = server
        self.port = server.sockets[0].getsockname()[1] if self.port == 0 else self.port

    async def stop(self) -> None:
        """End like a killed process: connections are reset, memory is lost."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.abort()
        self.keys.forget()

    def hang_up(self) -> None:
        """Close every connection; new ones are unaffected."""
        for connection in list(self.connections):
            connection.abort()

    def lose_everything(self) -> None:
        """FLUSHALL by another client."""
        self.keys.flush()

    def garbage(self) -> bytes:
        return self._rng.randbytes(GARBAGE_BYTES)

    def _now(self) -> float:
        assert self._loop is not None, "it has been started"
        return self._loop.time()


class _Connection(asyncio.Protocol):
    """One client. Commands are executed on arrival; answers keep their order."""

    def __init__(self, server: FakeValkey) -> None:
        self.number = server.accepted
        self.server = server
        self._reader = CommandReader()
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop
        self._unread: deque[Command] = deque()
        self._unsent: deque[tuple[float, bytes]] = deque()  # (time to send, bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._slow_client = False
        self._leaving = False  # as soon as all is sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self.server.accepted += 1
        if len(self.server.connections) >= MAX_CONNECTIONS:
            transport.abort()
            return
        self.server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.discard(self)
        self._transport = None
        self._unsent.clear()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        try:
            self._unread += self._reader.feed(data)
        except BadCommand as fault:
            self._leaving = True
            self._send(Failure(f"ERR Protocol error: {fault}"))
            return
        self.go_on()

    def pause_writing(self) -> None:
        """The client does not read: send no more answers until it does."""
        self._slow_client = True

    def resume_writing(self) -> None:
        self._slow_client = False
        self.go_on()

    def go_on(self) -> None:
        """Send held answers and execute pending commands, unless the server is frozen."""
        self._speak()
        while self._unread and not self.server.frozen and not self._slow_client and self._transport is not None:
            command = self._unread.popleft()
            if command:
                self.server.commands += 1
                self._send(self._carried_out(command))
        if self._transport is not None and not self._transport.is_closing():
            if self.server.frozen or self._slow_client:
                self._transport.pause_reading()  # further commands wait at the client
            else:
                self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _send(self, answer: Answer | _Raw) -> None:
        data = answer if isinstance(answer, _Raw) else encoded(answer)
        due = self._loop.time() + self.server.slow_s
        if self._unsent:
            due = max(due, self._unsent[-1][0])  # answers keep their order, even if `slow_s` changed meanwhile
        self._unsent.append((due, data))
        self._speak()

    def _speak(self) -> None:
        """Send due answers. One timer serves all of them, because timers of one moment have no order."""
        while self._unsent and not self.server.frozen and self._unsent[0][0] <= self._loop.time():
            self._write(self._unsent.popleft()[1])
        if self._leaving and not self._unsent and self._transport is not None:
            self._transport.close()
        if self._unsent and not self.server.frozen and self._timer is None:
            self._timer = self._loop.call_at(self._unsent[0][0], self._time_to_speak)

    def _time_to_speak(self) -> None:
        self._timer = None
        self._speak()

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        cuts_after = self.server.cuts_after
        if cuts_after is None:
            self._transport.write(data)
        else:
            self._transport.write(data[:cuts_after])
            self._transport.close()

    def _carried_out(self, command: Command) -> Answer | _Raw:
        name, arguments = command[0].upper(), command[1:]
        known = COMMANDS.get(name)
        if known is None:
            return Failure(f"ERR unknown command '{command[0].decode(errors='replace')}'")
        carry_out, counts, writes = known
        if len(arguments) not in counts:
            return Failure(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        refused = self.server.refuses
        if refused is not None and (refused is Refusal.LOADING or writes) and name not in GREETINGS:
            return Failure(refused)
        return carry_out(self, *arguments)


# The commands: each takes the connection and its arguments, and returns its answer.


def _hello(client: _Connection, version: bytes) -> Answer:
    if version != b"3":
        return Failure("NOPROTO unsupported protocol version")
    greeting: dict[str, Answer] = {"server": "valkey", "version": VERSION, "proto": 3, "id": client.number}
    return {**greeting, "mode": "standalone", "role": "master", "modules": []}


def _get(client: _Connection, key: bytes) -> Answer | _Raw:
    keys, lie = client.server.keys, client.server.lies
    if lie is Lie.NO_PROTOCOL:
        return _Raw(b"\x00" + client.server.garbage())
    if lie is Lie.GARBAGE:
        return client.server.garbage()
    if lie is Lie.ANOTHERS:
        return keys.another(key)
    held = keys.find(key, ended_too=lie is Lie.ENDED)
    if held is None:
        return None
    if not isinstance(held.value, bytes):
        return WRONG_TYPE
    return held.value[: len(held.value) // 2] if lie is Lie.TRUNCATED else held.value


def _set(client: _Connection, key: bytes, value: bytes, unit: bytes = b"", life_ms: bytes = b"") -> Answer:
    if unit.upper() not in (b"", b"PX") or bool(unit) != bool(life_ms):
        return SYNTAX
    client.server.keys.keep(key, value, int(life_ms) if life_ms else None)
    return OK


def _pttl(client: _Connection, key: bytes) -> Answer:
    ended = client.server.lies is Lie.ENDED and client.server.keys.find(key, ended_too=True) is not None
    return 0 if ended else client.server.keys.left_ms(key)


def _pexpire(client: _Connection, key: bytes, life_ms: bytes) -> Answer:
    return int(client.server.keys.expire(key, int(life_ms)))


def _lpush(client: _Connection, key: bytes, value: bytes) -> Answer:
    if client.server.keys.find(key) is not None:
        return WRONG_TYPE
    client.server.keys.keep(key, [value])
    return 1


def _script(client: _Connection, verb: bytes, script: bytes) -> Answer:
    if verb.upper() != b"LOAD" or script.decode(errors="replace") != UNLESS_FULLER:
        return Failure("ERR Error compiling script: this server knows the script of retrieval's cache alone")
    client.server.keys.scripts.add(FULLER_SHA)
    return FULLER_SHA


def _evalsha(client: _Connection, sha: bytes, number_of_keys: bytes, *arguments: bytes) -> Answer:
    if sha.decode(errors="replace") not in client.server.keys.scripts:
        return Failure("NOSCRIPT No matching script.")
    return client.server.keys.unless_fuller(*arguments)


class _Raw(bytes):
    """Bytes sent unchanged."""


GREETINGS = (b"HELLO", b"CLIENT")
# Handler, permitted number of arguments, and whether it writes.
COMMANDS: dict[bytes, tuple[Callable[..., Answer | _Raw], range, bool]] = {
    b"HELLO": (_hello, range(1, 2), False),
    b"CLIENT": (lambda client, *_arguments: OK, range(1, 4), False),
    b"PING": (lambda client: Simple("PONG"), range(1), False),
    b"GET": (_get, range(1, 2), False),
    b"SET": (_set, range(2, 5), True),
    b"PTTL": (_pttl, range(1, 2), False),
    b"PEXPIRE": (_pexpire, range(2, 3), True),
    b"LPUSH": (_lpush, range(2, 3), True),
    b"SCRIPT": (_script, range(2, 3), False),
    b"EVALSHA": (_evalsha, range(2, 9), True),
}
