"""An in-memory network: TCP as a process sees it, on the simulation's clock.

Hosts have addresses and a directed link between each two: latency, jitter, cut or not. A connection is two transports
(`transport.SimTransport`). Bytes arrive in order after the link's latency.

Simulated: the handshake (refused without a listener; on a cut link the SYN is resent after 1, 3 and 7 s), the backlog,
a window, half-close, resets, and a kernel that accepts and buffers for a stopped process. Data held by a cut link
arrives after it heals, like retransmitted segments. Not simulated: congestion, reordering (TCP hides it), lost
segments, TLS.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loadtests.cluster.transport import ACK, WINDOW_BYTES, Packet, SimTransport

if TYPE_CHECKING:
    from loadtests.cluster.loop import SimLoop, Simulation

LATENCY_S = 0.000_02
"""One way, within a machine."""
SYN_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Between tries of a handshake, as in Linux: 1, 3, 7, ... seconds after the first."""
RETRANSMIT_S = 0.2
"""The longest delay of held data after a link heals."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY = ("0.0.0.0", "::", "")
FIRST_PORT = 40_000

Address = tuple[str, int]


@dataclass(slots=True)
class Link:
    """One direction between two hosts, in seconds: a packet takes latency + jitter x [0, 1)."""

    latency_s: float = LATENCY_S
    jitter_s: float = 0.0
    cut: bool = False
    held: list[tuple[SimTransport, Packet, bytes]] = field(default_factory=list)


class Host:
    """A machine: its address, its name in traces, and its ports."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self.listeners: dict[int, Listening] = {}
        self._port = FIRST_PORT

    def free_port(self) -> int:
        """A port without a listener; never the same twice."""
        self._port += 1
        while self._port in self.listeners:
            self._port += 1
        return self._port

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"


class Listening:
    """A bound socket: the result of `bind` and argument of `create_server`."""

    family = socket.AF_INET

    def __init__(self, host: Host, shown: str, port: int) -> None:
        self.host = host
        self.port = port
        self.loop: SimLoop | None = None
        self.backlog = 0
        self.waiting = 0  # handshakes and connections that the process has not accepted yet
        self._shown = shown
        self._factory: Callable[[], asyncio.BaseProtocol] | None = None
        host.listeners[port] = self

    def serve(self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> SimServer:
        self.loop, self._factory, self.backlog = loop, factory, backlog
        return SimServer(self)

    @property
    def serving(self) -> bool:
        return self.loop is not None and not self.loop.is_closed()

    def accept(self, transport: SimTransport) -> None:
        """In the process: make a protocol for an accepted connection."""
        self.waiting -= 1
        assert self._factory is not None
        if self.host.listeners.get(self.port) is not self:
            transport.kernel_abort()  # its listener has closed meanwhile
            return
        transport.begin(self._factory())

    def getsockname(self) -> Address:
        return (self._shown, self.port)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        if self.host.listeners.get(self.port) is self:
            del self.host.listeners[self.port]


class SimServer(asyncio.AbstractServer):
    """The result of `create_server`."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._open = True

    @property
    def sockets(self) -> tuple[Listening, ...]:
        return (self._listening,) if self._open else ()

    def is_serving(self) -> bool:
        return self._open

    def get_loop(self) -> asyncio.AbstractEventLoop:
        assert self._listening.loop is not None
        return self._listening.loop

    async def start_serving(self) -> None:
        """It serves already."""

    async def serve_forever(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.close()

    def close(self) -> None:
        self._open = False
        self._listening.close()

    async def wait_closed(self) -> None:
        """Returns at once, as in Python 3.11."""


class Network:
    """Hosts, links and connections, with faults: `cut`, `heal`, and the methods of `connections`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.latency_s = LATENCY_S
        self.jitter_s = 0.0
        self.window_bytes = WINDOW_BYTES
        """Of new connections: a smaller window pauses writers sooner."""
        self.short_reads = 0.0
        """Share of reads that return only a part, cut at a random byte."""
        self.opaque_ports: frozenset[int] = frozenset()
        """Ports whose bytes are neither digested nor cut: a scrape depends on this machine's memory."""
        self.connections: dict[SimTransport, None] = {}
        self._hosts: dict[str, Host] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._numbers = 0

    # Hosts and links

    def host(self, address: str, name: str) -> Host:
        """The machine at that address; processes on it share its ports."""
        return self._hosts.setdefault(address, Host(address, name))

    def link(self, source: Host, target: Host) -> Link:
        key = (source.address, target.address)
        found = self._links.get(key)
        if found is None:
            near = source is target
            found = Link(LATENCY_S if near else self.latency_s, 0.0 if near else self.jitter_s)
            self._links[key] = found
        return found

    def cut(self, one: Host, other: Host) -> None:
        self.link(one, other).cut = True

    def heal(self, one: Host, other: Host) -> None:
        """Heal one direction; held packets arrive soon."""
        link = self.link(one, other)
        link.cut = False
        held, link.held = link.held, []
        delay_s = self.simulation.rng.random() * RETRANSMIT_S
        for transport, kind, data in held:
            self.send(transport, kind, data, delay_s)

    def resolve(self, loop: SimLoop, name: str) -> Host:
        """A machine by address or process name, or the caller's own. Raises socket.gaierror."""
        if name in LOOPBACK or name in ANY:
            return loop.host
        found = self._hosts.get(name) or next((host for host in self._hosts.values() if host.name == name), None)
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    def addresses(self, loop: SimLoop, name: Any, port: Any) -> list[Any]:
        name = name.decode() if isinstance(name, bytes) else name
        shown = "127.0.0.1" if name in LOOPBACK else self.resolve(loop, name).address
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (shown, int(port or 0)))]

    # Connections

    def bind(self, loop: SimLoop, host: str, port: int) -> Listening:
        """A listening socket. Raises OSError if the port is taken."""
        port = port or loop.host.free_port()
        if port in loop.host.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return Listening(loop.host, host, port)

    async def connect(
        self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], name: str, port: int, source: str
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Connect; `source` is the address that the server sees.

        Raises ConnectionRefusedError, TimeoutError, socket.gaierror.
        """
        target = self.resolve(loop, name)
        shown = name if name in LOOPBACK else target.address
        done: asyncio.Future[SimTransport] = loop.create_future()
        self._syn(loop, source, target, (shown, port), done, 0)
        try:
            transport = await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled() and done.exception() is None:
                done.result().kernel_abort()
            raise
        protocol = factory()
        made: asyncio.Future[None] = loop.create_future()
        transport.begin(protocol, made)
        try:
            await made
        except asyncio.CancelledError:
            transport.close()
            raise
        return transport, protocol

    def _syn(
        self, loop: SimLoop, source: str, target: Host, to: Address, done: asyncio.Future[SimTransport], tries: int
    ) -> None:
        """Send the first segment, and resend it if it is lost."""
        if loop.is_closed() or done.done():
            return
        listening = target.listeners.get(to[1])
        lost = self.link(loop.host, target).cut or self.link(target, loop.host).cut
        full = listening is not None and listening.waiting > listening.backlog
        if not lost and not full:
            self.simulation.at(self._arrival(loop.host, target), self._handshake, loop, source, target, to, done)
        elif tries < len(SYN_AGAIN_S):
            again_at = self.simulation.now + SYN_AGAIN_S[tries]
            self.simulation.at(again_at, self._syn, loop, source, target, to, done, tries + 1)
        else:
            _fail(done, TimeoutError(errno.ETIMEDOUT, "Connect call failed"))

    def _handshake(
        self, loop: SimLoop, source: str, target: Host, to: Address, done: asyncio.Future[SimTransport]
    ) -> None:
        """The first segment arrived: the target's kernel answers, even for a stopped process."""
        listening = target.listeners.get(to[1])
        back_at = self._arrival(target, loop.host)
        if loop.is_closed():
            return
        if listening is None or not listening.serving:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {to}")
            self.simulation.at(back_at, _fail, done, refused)
            return
        assert listening.loop is not None
        from_address = (source, loop.host.free_port())
        self._numbers += 1
        near = SimTransport(loop, self, self._numbers, loop.host, to, from_address)
        far = SimTransport(listening.loop, self, self._numbers, target, from_address, to)
        near.join(far)
        for transport in (near, far):
            transport.opaque = to[1] in self.opaque_ports
            self.connections[transport] = None
        listening.waiting += 1
        self.simulation.note(target.name, "accepts", f"#{self._numbers} from {loop.host.name} at port {to[1]}")
        listening.loop.call_soon(listening.accept, far)
        self.simulation.at(back_at, self._joined, near, done)

    def _joined(self, near: SimTransport, done: asyncio.Future[SimTransport]) -> None:
        if near.loop.is_closed():
            return
        if done.done():
            near.kernel_abort()  # the caller gave up
        else:
            done.set_result(near)

    def _arrival(self, source: Host, target: Host) -> float:
        link = self.link(source, target)
        jitter_s = link.jitter_s * self.simulation.rng.random() if link.jitter_s else 0.0
        return self.simulation.now + link.latency_s + jitter_s

    def send(self, transport: SimTransport, kind: Packet, data: bytes = b"", delay_s: float = 0.0) -> None:
        """Carry one packet to the other end, in order within its direction."""
        peer = transport.peer
        link = self.link(transport.host, peer.host)
        if transport.silent or peer.silent:
            return
        if link.cut:
            link.held.append((transport, kind, data))
            return
        jitter_s = link.jitter_s * self.simulation.rng.random() if link.jitter_s else 0.0
        at = self.simulation.now + link.latency_s + jitter_s + delay_s
        if at < transport.last_arrival:
            at = transport.last_arrival
        transport.last_arrival = at
        if kind != ACK:
            digested = b"" if transport.opaque else data
            detail = f"#{transport.number} {len(digested)} to {peer.host.name}"
            self.simulation.note(transport.host.name, kind, detail, digested)
        self.simulation.at(at, peer.arrive, kind, data)

    def close_all(self, loop: SimLoop) -> None:
        """Close the sockets of an ended process."""
        for listening in [each for each in loop.host.listeners.values() if each.loop is loop]:
            listening.close()
        for transport in [each for each in self.connections if each.loop is loop]:
            transport.kernel_close()

    def between(self, one: Host, other: Host) -> list[SimTransport]:
        """One host's ends of its connections with another."""
        return [each for each in self.connections if each.host is one and each.peer.host is other]


def _fail(done: asyncio.Future[SimTransport], error: OSError) -> None:
    if not done.done() and not done.get_loop().is_closed():
        done.set_exception(error)
