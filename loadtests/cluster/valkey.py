"""A fake Valkey that speaks RESP 2 and 3 over `loop.create_server`, so that the real client meets it over a wire.

Its interface is the protocol, the narrowest there is for a server that its clients know by nothing else: the client
library, its pool, its parser and `services.retrieval.cache` run as they are. Its only clock is the loop's. Memory is
bounded as a real server's is (`keyspace.py`).

What it knows: HELLO, PING, CLIENT, SELECT 0, GET, MGET, SET (EX, PX, NX, XX), PTTL, PEXPIRE, EXISTS, DEL, LPUSH, EVAL,
EVALSHA and SCRIPT LOAD (of the one script that the cache runs), FLUSHALL, DBSIZE, INFO (the memory that is used) and
CONFIG GET and SET of its two bounds. Anything else is an unknown command. tests/contract holds it and a real server to
the same sentences.

What it does not cover: passwords, other databases, MULTI, subscriptions, replication, Lua as a language, the order in
which a real server evicts (it draws samples; this one takes the least recently used), and a server's own slowness with
big answers.

Its faults, each an attribute or a call, all at any time:

    slow_s            every answer comes so much later; answers keep their order
    frozen            nothing is read or said; connections are still accepted, as a kernel does for a stopped process
    refuses           `LOADING` all but the greeting, `OOM` and `READONLY` what writes
    lies              what is said of a key is not what is kept under it: see `Lie`
    cuts_after        connections are closed in the middle of an answer, after so many bytes of it
    hang_up()         every connection is closed
    lose_everything() no key is left
    stop(), start()   the process has ended: no key, no script, no connection, and nobody listens
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from loadtests.cluster.keyspace import FULL, POLICIES, WRONG_TYPE, Keyspace
from loadtests.cluster.resp import OK, Answer, BadCommand, Command, CommandReader, Failure, Simple, encoded

VERSION = "9.1.0"
MOST_CONNECTIONS = 10_000
GARBAGE_BYTES = 100


class Refusal(StrEnum):
    """What a server that answers may refuse to do."""

    LOADING = "LOADING Valkey is loading the dataset in memory"
    OOM = "OOM command not allowed when used memory > 'maxmemory'."
    READONLY = "READONLY You can't write against a read only replica."


class Lie(StrEnum):
    """What GET and MGET say instead of what is kept."""

    ANOTHERS = "the value of another key, the one that was used last"
    TRUNCATED = "the first half of the value"
    GARBAGE = "bytes that nobody has stored"
    ENDED = "a value whose time is over, with nothing left of its life"
    NO_PROTOCOL = "bytes that are no answer in RESP"


class FakeValkey:
    """One server at one address. `port` 0 is any, on a loop that has real sockets."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = 6379, *, most_bytes: int = 64 << 20, rng: random.Random | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.keys = Keyspace(self._now, most_bytes=most_bytes)
        self.slow_s = 0.0
        self.refuses: Refusal | None = None
        self.lies: Lie | None = None
        self.cuts_after: int | None = None
        self.accepted = self.commands = 0
        self.connections: set[_Connection] = set()
        self._rng = rng or random.Random(0)
        self._frozen = False
        self._loop: asyncio.AbstractEventLoop | None = None  # it may be asked and told things from outside of it
        self._server: asyncio.AbstractServer | None = None

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def frozen(self) -> bool:
        return self._frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        """When it thaws it goes on where it was: what came meanwhile is carried out, in the order of connections."""
        self._frozen = frozen
        if not frozen:
            for connection in sorted(self.connections, key=lambda each: each.number):
                connection.go_on()

    async def start(self) -> None:
        """Listen, and hold nothing."""
        self._loop = asyncio.get_running_loop()
        server = await self._loop.create_server(lambda: _Connection(self), self.host, self.port)
        self._server = server
        self.port = server.sockets[0].getsockname()[1] if self.port == 0 else self.port

    async def stop(self) -> None:
        """As the kernel ends a process: its connections are reset, its memory is gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.abort()
        self.keys.forget()

    def hang_up(self) -> None:
        """Close every connection; the next ones are as good as any."""
        for connection in list(self.connections):
            connection.abort()

    def lose_everything(self) -> None:
        """FLUSHALL, by somebody else."""
        self.keys.flush()

    def garbage(self) -> bytes:
        return self._rng.randbytes(GARBAGE_BYTES)

    def _now(self) -> float:
        assert self._loop is not None, "it has been started"
        return self._loop.time()


class _Connection(asyncio.Protocol):
    """One client. Commands are carried out as they come; their answers leave in the same order."""

    def __init__(self, server: FakeValkey) -> None:
        self.number = server.accepted
        self._server = server
        self._reader = CommandReader()
        self._version = 2
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop
        self._unread: deque[Command] = deque()
        self._unsaid: deque[tuple[float, bytes]] = deque()  # and when it is to be said
        self._timer: asyncio.TimerHandle | None = None
        self._slow_client = False
        self._leaving = False  # as soon as all is said

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._server.accepted += 1
        if len(self._server.connections) >= MOST_CONNECTIONS:
            transport.abort()
            return
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._transport = None
        self._unsaid.clear()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._leaving:
            return
        try:
            self._unread += self._reader.feed(data)
        except BadCommand as fault:
            self._leaving = True
            self._say(Failure(f"ERR Protocol error: {fault}"))
            return
        self.go_on()

    def pause_writing(self) -> None:
        """It does not read its answers: it gets no more of them until it does."""
        self._slow_client = True

    def resume_writing(self) -> None:
        self._slow_client = False
        self.go_on()

    def go_on(self) -> None:
        """Say what was held back, and carry out what has come, unless the server is frozen."""
        self._speak()
        while self._unread and not self._server.frozen and not self._slow_client and self._transport is not None:
            command = self._unread.popleft()
            if command:
                self._server.commands += 1
                self._say(self._carried_out(command))
        if self._transport is not None and not self._transport.is_closing():
            if self._server.frozen or self._slow_client:
                self._transport.pause_reading()  # what comes meanwhile waits at the client
            else:
                self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _say(self, answer: Answer | _Raw) -> None:
        data = answer if isinstance(answer, _Raw) else encoded(answer, self._version)
        due = self._loop.time() + self._server.slow_s
        if self._unsaid:
            due = max(due, self._unsaid[-1][0])  # answers keep their order, whatever became of the slowness meanwhile
        self._unsaid.append((due, data))
        self._speak()

    def _speak(self) -> None:
        """Whatever is due. Timers of one moment have no order among them, so there is one timer for all answers."""
        while self._unsaid and not self._server.frozen and self._unsaid[0][0] <= self._loop.time():
            self._write(self._unsaid.popleft()[1])
        if self._leaving and not self._unsaid and self._transport is not None:
            self._transport.close()
        if self._unsaid and not self._server.frozen and self._timer is None:
            self._timer = self._loop.call_at(self._unsaid[0][0], self._time_to_speak)

    def _time_to_speak(self) -> None:
        self._timer = None
        self._speak()

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        cuts_after = self._server.cuts_after
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
        handler, fewest, most, writes = known
        if not fewest <= len(arguments) <= most:
            return Failure(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        refused = self._server.refuses
        if refused is not None and (refused is Refusal.LOADING or writes) and name not in GREETINGS:
            return Failure(refused)
        if writes and name in NEED_MEMORY and not self._server.keys.make_room():
            return FULL
        return handler(self, *arguments)

    # The commands: each takes its arguments and gives its answer.

    def hello(self, version: bytes = b"", *options: bytes) -> Answer:
        if options:
            return Failure("ERR this server knows HELLO with a version alone")
        if version and version not in (b"2", b"3"):
            return Failure("NOPROTO unsupported protocol version")
        self._version = int(version or self._version)
        return {
            "server": "valkey",
            "version": VERSION,
            "proto": self._version,
            "id": self.number,
            "mode": "standalone",
            "role": "master",
            "modules": [],
        }

    def client(self, verb: bytes, *options: bytes) -> Answer:
        known = verb.upper() in (b"SETINFO", b"SETNAME")
        return OK if known else Failure(f"ERR unknown subcommand '{verb.decode(errors='replace')}'")

    def select(self, number: bytes) -> Answer:
        return OK if number == b"0" else Failure("ERR DB index is out of range")

    def ping(self, *said: bytes) -> Answer:
        return said[0] if said else Simple("PONG")

    def get(self, key: bytes) -> Answer | _Raw:
        keys, lie = self._server.keys, self._server.lies
        if lie is None:
            return keys.value(key)
        if lie is Lie.ENDED:
            held = keys.find(key, ended_too=True)
            return held.value if held is not None and isinstance(held.value, bytes) else None
        if lie is Lie.ANOTHERS:
            return keys.another(key)
        if lie is Lie.NO_PROTOCOL:
            return _Raw(b"\x00" + self._server.garbage())
        if lie is Lie.GARBAGE:
            return self._server.garbage()
        value = keys.value(key)
        return value[: len(value) // 2] if isinstance(value, bytes) else value

    def mget(self, *asked: bytes) -> Answer | _Raw:
        answers: list[Answer] = []
        for key in asked:
            answer = self.get(key)
            if isinstance(answer, _Raw):
                return answer
            answers.append(None if answer is WRONG_TYPE else answer)
        return answers

    def set(self, key: bytes, value: bytes, *options: bytes) -> Answer:
        return self._server.keys.set(key, value, *options)

    def pttl(self, key: bytes) -> Answer:
        ended = self._server.lies is Lie.ENDED and self._server.keys.find(key, ended_too=True) is not None
        return 0 if ended else self._server.keys.left_ms(key)

    def pexpire(self, key: bytes, ms: bytes) -> Answer:
        return self._server.keys.expire(key, ms)

    def exists(self, *asked: bytes) -> Answer:
        return sum(self._server.keys.find(key) is not None for key in asked)

    def delete(self, *asked: bytes) -> Answer:
        return sum(self._server.keys.find(key) is not None and self._server.keys.remove(key) for key in asked)

    def lpush(self, key: bytes, *values: bytes) -> Answer:
        return self._server.keys.push(key, *values)

    def script(self, verb: bytes, *options: bytes) -> Answer:
        if verb.upper() == b"LOAD" and len(options) == 1:
            return self._server.keys.loaded(options[0])
        return Failure("ERR this server knows SCRIPT LOAD alone")

    def evalsha(self, sha: bytes, *arguments: bytes) -> Answer:
        return self._server.keys.evaluated(sha.decode(errors="replace").lower(), arguments)

    def eval(self, script: bytes, *arguments: bytes) -> Answer:
        sha = self._server.keys.loaded(script)
        return self._server.keys.evaluated(sha, arguments) if isinstance(sha, str) else sha

    def flushall(self, *options: bytes) -> Answer:
        self._server.keys.flush()
        return OK

    def dbsize(self) -> Answer:
        return len(self._server.keys)

    def info(self, *sections: bytes) -> Answer:
        return f"# Memory\r\nused_memory:{self._server.keys.used}\r\n"

    def config(self, verb: bytes, name: bytes, *value: bytes) -> Answer:
        keys, setting = self._server.keys, name.decode(errors="replace").lower()
        known: dict[str, Answer] = {"maxmemory": str(keys.most_bytes), "maxmemory-policy": keys.policy}
        if verb.upper() == b"GET":
            return {setting: known[setting]} if setting in known else {}
        if verb.upper() != b"SET" or len(value) != 1 or setting not in known:
            return Failure("ERR this server knows CONFIG GET and SET of maxmemory and maxmemory-policy alone")
        said = value[0].decode(errors="replace")
        if setting == "maxmemory" and said.isdigit():
            keys.most_bytes = int(said)
        elif setting == "maxmemory-policy" and said in POLICIES:
            keys.policy = said
        else:
            return Failure("ERR CONFIG SET failed")
        return OK


class _Raw(bytes):
    """What goes on the wire as it is."""


ANY = 1_000
GREETINGS = (b"HELLO", b"CLIENT", b"SELECT")
NEED_MEMORY = (b"SET", b"LPUSH")
# How each is carried out, the fewest and the most arguments, and whether it writes.
COMMANDS: dict[bytes, tuple[Callable[..., Answer | _Raw], int, int, bool]] = {
    b"HELLO": (_Connection.hello, 0, ANY, False),
    b"CLIENT": (_Connection.client, 1, ANY, False),
    b"SELECT": (_Connection.select, 1, 1, False),
    b"PING": (_Connection.ping, 0, 1, False),
    b"GET": (_Connection.get, 1, 1, False),
    b"MGET": (_Connection.mget, 1, ANY, False),
    b"SET": (_Connection.set, 2, 8, True),
    b"PTTL": (_Connection.pttl, 1, 1, False),
    b"PEXPIRE": (_Connection.pexpire, 2, 2, True),
    b"EXISTS": (_Connection.exists, 1, ANY, False),
    b"DEL": (_Connection.delete, 1, ANY, True),
    b"LPUSH": (_Connection.lpush, 2, ANY, True),
    b"SCRIPT": (_Connection.script, 1, ANY, False),
    b"EVALSHA": (_Connection.evalsha, 2, ANY, True),
    b"EVAL": (_Connection.eval, 2, ANY, True),
    b"FLUSHALL": (_Connection.flushall, 0, 1, True),
    b"DBSIZE": (_Connection.dbsize, 0, 0, False),
    b"INFO": (_Connection.info, 0, 1, False),
    b"CONFIG": (_Connection.config, 2, 3, False),
}
