"""`python -m loadtests.runs.siege.attackers NAME --port N --count N --wait-s S --seconds S`: the attackers of one row.

A process of its own, so that what it costs is not the honest client's time. It prints its counts as a line of JSON
every second, and ends by itself. One epoll and one tick: at most 100 wake-ups a second, whatever happens. Load goes to
127.0.0.1 only, from other addresses of loopback (127.0.0.0/8), which Linux has without being told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from itertools import count

from loadtests.runs.siege.attacks import BY_NAME, Attack, Opening

TARGET = "127.0.0.1"
TICK_S = 0.01
LEAST_TICKS = 100  # however slow the machine is: enough for ten to connect
OPEN_WITHIN_S = 10.0  # all of them: how fast connections may come is not what is measured
REOPENS_PER_S = 50.0
CHUNK_BYTES = 262_144  # about as much as one read of the server's may take
SPARE_DESCRIPTORS = 64
MOST_SECONDS = 600.0
IP_BIND_ADDRESS_NO_PORT = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)  # a port is chosen for each pair of addresses
ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
REFUSED = (b"429", b"503")


@dataclass
class Counts:
    """`refused` were answered 429 or 503, or could not connect; all others whose connection ended were `cut`."""

    wanted: int = 0
    connected: int = 0
    most_connected: int = 0
    opened: int = 0
    refused: int = 0
    cut: int = 0
    sent_bytes: int = 0


@dataclass
class Allowance:
    """A token bucket: so many a second, and at most those of a fifth of a second at once."""

    per_s: float
    left: float = 0.0

    def refill(self, seconds: float) -> None:
        self.left = min(self.left + self.per_s * seconds, max(1.0, self.per_s / 5))


@dataclass(eq=False)
class Peer:
    """One attacker's connection."""

    index: int
    socket: socket.socket
    opening: Opening
    says: bytes  # what is being sent now, and how much of it has been
    sent: int = 0
    connected: bool = False


@dataclass
class Attackers:
    """All connections of one attack."""

    attack: Attack
    port: int
    counts: Counts
    stopped: bool = False

    def __post_init__(self) -> None:
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}  # by descriptor
        self._unopened = deque(range(self.counts.wanted))
        self._ended: deque[int] = deque()
        self._drips: deque[tuple[float, Peer]] = deque()  # when each is due, the soonest first
        self._fresh = Allowance(max(REOPENS_PER_S, self.counts.wanted / OPEN_WITHIN_S))
        self._again = Allowance(REOPENS_PER_S)
        self._bytes = Allowance(self.attack.bytes_per_s)

    def run(self, seconds: float) -> None:
        """Until the time is over, or `stopped`; then every connection is closed."""
        began = last = told = time.monotonic()
        try:
            for tick in count():
                now = time.monotonic()
                if self.stopped or (now >= began + seconds and tick >= LEAST_TICKS):
                    break
                self._tick(now, now - last)
                last = now
                if now >= told + 1:
                    told = now
                    self.tell()
                time.sleep(TICK_S)
            self.tell()
        finally:
            for peer in self._peers.values():
                peer.socket.close()
            self._epoll.close()

    def tell(self) -> None:
        sys.stdout.write(json.dumps(asdict(self.counts)) + "\n")
        sys.stdout.flush()

    def _tick(self, now: float, passed_s: float) -> None:
        for allowance in (self._fresh, self._again, self._bytes):
            allowance.refill(passed_s)
        for waiting, allowance in ((self._unopened, self._fresh), (self._ended, self._again)):
            while waiting and allowance.left >= 1:
                allowance.left -= 1
                self._open(waiting.popleft())
        while self._drips and self._drips[0][0] <= now:
            self._drip(now, self._drips.popleft()[1])
        for descriptor, events in self._epoll.poll(0, max(1, len(self._peers))):
            self._event(self._peers[descriptor], events, now)

    def _open(self, index: int) -> None:
        attack = self.attack
        made = socket.socket()
        made.setblocking(False)
        if attack.receive_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, attack.receive_bytes)
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((attack.sources[index % len(attack.sources)], 0))
        opening = attack.openings[index // len(attack.sources) % len(attack.openings)]
        peer = Peer(index, made, opening, opening.data + attack.repeats)
        self._peers[made.fileno()] = peer
        made.connect_ex((TARGET, self.port))
        self._epoll.register(made, select.EPOLLOUT | ENDED)

    def _event(self, peer: Peer, events: int, now: float) -> None:
        if events & ENDED:
            self._close(peer)
            return
        if not peer.connected:
            peer.connected = True
            self.counts.opened += 1
            self.counts.connected += 1
            self.counts.most_connected = max(self.counts.most_connected, self.counts.connected)
        self._say(peer, now)

    def _say(self, peer: Peer, now: float) -> None:
        """The next piece of what it has to say. Once all is said, the socket is watched for its end alone."""
        chunk = memoryview(peer.says)[peer.sent : peer.sent + max(0, min(CHUNK_BYTES, int(self._bytes.left)))]
        if (chunk and not self._send(peer, chunk)) or peer.sent < len(peer.says):
            return
        if self.attack.repeats:
            peer.says, peer.sent = self.attack.repeats, 0
            return
        self._epoll.modify(peer.socket, ENDED)
        if self.attack.drip:
            self._drips.append((now + self.attack.drip_s, peer))

    def _drip(self, now: float, peer: Peer) -> None:
        if self._peers.get(peer.socket.fileno()) is not peer:
            return  # it has ended meanwhile
        if peer.opening.half_closes:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)
        elif self._send(peer, self.attack.drip):
            self._drips.append((now + self.attack.drip_s, peer))

    def _send(self, peer: Peer, data: bytes | memoryview) -> bool:
        """False where the connection has ended. A full socket takes nothing, and is asked again later."""
        try:
            sent = peer.socket.send(data)
        except BlockingIOError:
            return True
        except OSError:
            self._close(peer)
            return False
        peer.sent += sent
        self.counts.sent_bytes += sent
        self._bytes.left -= sent
        return True

    def _close(self, peer: Peer) -> None:
        """The connection has ended, or never began: it is opened again when there is an allowance for it."""
        first = b""
        with contextlib.suppress(OSError):
            first = peer.socket.recv(12)
        if not peer.connected or first[9:] in REFUSED:
            self.counts.refused += 1
        else:
            self.counts.cut += 1
        self.counts.connected -= peer.connected
        del self._peers[peer.socket.fileno()]
        peer.socket.close()  # this takes it out of the epoll as well
        self._ended.append(peer.index)


def latest(log: str) -> Counts:
    """The counts of the last whole line; zeros before there is one."""
    told = [line for line in log.splitlines() if line.startswith("{") and line.endswith("}")]
    return Counts(**json.loads(told[-1])) if told else Counts()


def affordable(count: int) -> int:
    """As many of them as there may be descriptors in this process. Raises the soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return count if hard == resource.RLIM_INFINITY else min(count, hard - SPARE_DESCRIPTORS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.siege.attackers")
    parser.add_argument("name", choices=list(BY_NAME))
    for name, kind in (("--port", int), ("--count", int), ("--wait-s", float), ("--seconds", float)):
        parser.add_argument(name, type=kind, required=True)
    given = parser.parse_args()
    attack = BY_NAME[given.name]
    attackers = Attackers(attack, given.port, Counts(wanted=affordable(min(given.count, attack.count))))

    def stop(number: int, frame: object) -> None:
        attackers.stopped = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    time.sleep(max(0.0, given.wait_s))
    attackers.run(min(given.seconds, MOST_SECONDS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
