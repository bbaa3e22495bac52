"""A router process under a parent: inherited sockets, the link, and how it leaves without losing a request.

It accepts connections once its start is complete: until then the others accept in its place. To hand over, it closes
its listeners as soon as the others accept for it; each answer is then the last of its connection, and it ends when all
are answered. SIGTERM drains it as it drains any service.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys

from pydantic_settings import BaseSettings, SettingsConfigDict

from services.router.processes.link import COVER, HAND_OVER, LAST, LEAVING, OWN, READY, Link
from services.runtime.drain import Drain
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process
from services.runtime.settings import environment

PR_SET_PDEATHSIG = 1
HAND_OVER_S = 2.0
"""At least so long are connections served that are told that their next answer is the last: most that are in use have
had it by then, and a request that arrives as its connection closes would be lost."""
COVERED_WITHIN_S = 0.2  # until the others accept
LOOK_EVERY_S = 0.05
LAST_LOOK_S = 2.0  # for the parent to read the last figures
PREFIX = "ROUTER_PROCESS_"


class Place(BaseSettings):
    """What the parent says in variables. `public`: the descriptors of all processes' sockets, by their number."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix=PREFIX)

    index: int
    parent: int
    public: tuple[int, ...]
    metrics: int
    link: int

    def variables(self) -> dict[str, str]:
        public = "[" + ",".join(map(str, self.public)) + "]"
        shown = {
            "index": self.index,
            "parent": self.parent,
            "public": public,
            "metrics": self.metrics,
            "link": self.link,
        }
        return {PREFIX + name.upper(): str(value) for name, value in shown.items()}

    def bind(self, host: str, port: int, variable: str) -> socket.socket:
        """The inherited socket in place of one at this address."""
        return _socket(self.metrics if variable == "METRICS_PORT" else self.public[self.index])


def place_here() -> Place | None:
    """This process's place, if a parent started it: it then ends with that parent."""
    if f"{PREFIX}LINK" not in environment():
        return None
    place = Place()  # type: ignore[call-arg]  # from the environment
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != place.parent:  # it died before that
        os._exit(1)
    return place


def inherit(process: Process, place: Place) -> Process:
    """The same process on its inherited sockets, and in touch with its parent."""
    assert isinstance(process.listener, HttpListener)
    link = Link(_socket(place.link))
    spare = [_socket(fd) for index, fd in enumerate(place.public) if index != place.index]
    shared = SharedPort(process.listener, link, spare, process.drain, process.log)
    first_start, first_stop = process.start, process.stop
    answered = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def hand_over() -> None:
        await shared.hand_over(max(HAND_OVER_S, process.drain_delay_s), process.drain_timeout_s)
        process.drain_delay_s = 0.0
        process.leave()

    def received(word: bytes) -> None:
        if word == LAST:
            answered.set()
            return
        work = {COVER: shared.cover, OWN: shared.own, HAND_OVER: hand_over}[word]
        task = asyncio.get_running_loop().create_task(work())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def start() -> None:
        await first_start()
        await shared.accept()
        link.listen(received, process.leave)
        link.say(READY)

    async def stop() -> None:
        await first_stop()
        link.say(LAST)
        try:
            async with asyncio.timeout(LAST_LOOK_S):
                await answered.wait()
        except TimeoutError:
            process.log.warning("the parent did not read the last metrics")
        link.close()

    process.listener, process.start, process.stop = shared, start, stop
    return process


class SharedPort:
    """The `Listener` of a process on its own socket, and on the others' (`spare`) while it covers for them."""

    def __init__(self, inner: HttpListener, link: Link, spare: list[socket.socket], drain: Drain, log: Log) -> None:
        self._inner = inner
        self._link = link
        self._spare = spare
        self._drain = drain
        self._log = log
        self._own: socket.socket | None = None
        self._accepts = False
        self._covering: list[asyncio.AbstractServer] = []
        self._changing = asyncio.Lock()

    async def open(self, sock: socket.socket) -> None:
        """Keep the socket; `accept` begins to use it."""
        self._own = sock

    async def accept(self) -> None:
        assert self._own is not None
        await self._inner.open(self._own)
        self._accepts = True

    async def cover(self) -> None:
        """Accept from the others' sockets too."""
        async with self._changing:
            if self._accepts and not self._covering:
                self._covering = [await self._inner.accept_from(sock.dup()) for sock in self._spare]

    async def own(self) -> None:
        """Accept from the own socket only: what waits at the others' is theirs."""
        async with self._changing:
            self._close_covering()

    async def hand_over(self, at_least_s: float, grace_s: float) -> None:
        """Let the others accept, and answer what is here: for `at_least_s`, and for `grace_s` more while needed."""
        self._link.say(LEAVING)
        self._inner.announce()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(COVERED_WITHIN_S)
        await self._close_all()
        self._log.info("handing over", connections=self._inner.connections)
        while self._inner.connections and (passed := loop.time() - began) < at_least_s + grace_s:
            if passed >= at_least_s and not self._drain.inflight:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def announce(self) -> None:
        self._close_spare()
        self._inner.announce()

    async def close(self, grace_s: float) -> None:
        self._link.say(LEAVING)
        self._close_spare()
        if not self._accepts:
            if self._own is not None:
                self._own.close()
            return
        async with self._changing:
            await self._inner.close(grace_s)
            self._close_covering()

    async def _close_all(self) -> None:
        async with self._changing:
            self._close_covering()
            self._close_spare()
            await self._inner.stop_accepting()

    def _close_covering(self) -> None:
        servers, self._covering = self._covering, []
        for server in servers:
            server.close()

    def _close_spare(self) -> None:
        """Its copies of sockets that it does not serve: a socket is closed once all copies are."""
        spare, self._spare = self._spare, []
        for sock in spare:
            sock.close()


def _socket(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock
