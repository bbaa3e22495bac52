"""`python -m loadtests.runs.siege.attackers NAME --port N --count N --wait-s S --seconds S`: the attackers of one row.

They run in their own process, so that their processor time is not taken from the honest client. The process prints its
counters as a line of JSON every second, and exits by itself. It uses one epoll and one tick: at most 100 wake-ups a
second. Load goes to 127.0.0.1 only, from other loopback addresses (127.0.0.0/8), which Linux has without configuration.
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
MIN_TICKS = 100  # on a slow machine too: enough for ten attackers to connect
OPEN_WITHIN_S = 10.0  # for all of them: the rate of new connections is not measured here
REOPENS_PER_S = 50.0
CHUNK_BYTES = 262_144  # about the largest single read of the server
SPARE_DESCRIPTORS = 64
MAX_SECONDS = 600.0
IP_BIND_ADDRESS_NO_PORT = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)  # one port per pair of addresses, not globally
ENDED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
REFUSED = (b"429", b"503")


@dataclass
class Counts:
    """`refused`: answered 429 or 503, or could not connect. `cut`: all other connections that ended."""

    wanted: int = 0
    connected: int = 0
    max_connected: int = 0
    opened: int = 0
    refused: int = 0
    cut: int = 0
    sent_bytes: int = 0


@dataclass
class Allowance:
    """A token bucket: `per_s` a second, with a burst of a fifth of a second, at least 1."""

    per_s: float
    left: float = 0.0

    def refill(self, seconds: float) -> None:
        self.left = min(self.left + self.per_s * seconds, max(1.0, self.per_s / 5))


@dataclass(eq=False)
class Peer:
    index: int
    socket: socket.socket
    opening: Opening
    data: bytes  # the bytes to send; `sent` of them are written
    sent: int = 0
    connected: bool = False


@dataclass
class Attackers:
    attack: Attack
    port: int
    counts: Counts
    stopped: bool = False

    def __post_init__(self) -> None:
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}  # by descriptor
        self._unopened = deque(range(self.counts.wanted))
        self._ended: deque[int] = deque()
        self._drips: deque[tuple[float, Peer]] = deque()  # (due, peer), the soonest first
        self._fresh = Allowance(max(REOPENS_PER_S, self.counts.wanted / OPEN_WITHIN_S))
        self._again = Allowance(REOPENS_PER_S)
        self._bytes = Allowance(self.attack.bytes_per_s)

    def run(self, seconds: float) -> None:
        """Until `seconds` have passed or `stopped` is set; then every connection is closed."""
        began = last = printed = time.monotonic()
        try:
            for tick in count():
                now = time.monotonic()
                if self.stopped or (now >= began + seconds and tick >= MIN_TICKS):
                    break
                self._tick(now, now - last)
                last = now
                if now >= printed + 1:
                    printed = now
                    self.report()
                time.sleep(TICK_S)
            self.report()
        finally:
            for peer in self._peers.values():
                peer.socket.close()
            self._epoll.close()

    def report(self) -> None:
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
            self.counts.max_connected = max(self.counts.max_connected, self.counts.connected)
        self._write(peer, now)

    def _write(self, peer: Peer, now: float) -> None:
        """Send the next piece. After the last one the socket is watched for its end only."""
        chunk = memoryview(peer.data)[peer.sent : peer.sent + max(0, min(CHUNK_BYTES, int(self._bytes.left)))]
        if (chunk and not self._send(peer, chunk)) or peer.sent < len(peer.data):
            return
        if self.attack.repeats:
            peer.data, peer.sent = self.attack.repeats, 0
            return
        self._epoll.modify(peer.socket, ENDED)
        if self.attack.drip:
            self._drips.append((now + self.attack.drip_s, peer))

    def _drip(self, now: float, peer: Peer) -> None:
        if self._peers.get(peer.socket.fileno()) is not peer:
            return  # the connection has ended
        if peer.opening.half_closes:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)
        elif self._send(peer, self.attack.drip):
            self._drips.append((now + self.attack.drip_s, peer))

    def _send(self, peer: Peer, data: bytes | memoryview) -> bool:
        """False if the connection has ended. A full socket takes nothing, and is tried again later."""
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
        """The connection has ended or could not be opened. It is opened again within the allowance."""
        first = b""
        with contextlib.suppress(OSError):
            first = peer.socket.recv(12)
        if not peer.connected or first[9:] in REFUSED:
            self.counts.refused += 1
        else:
            self.counts.cut += 1
        self.counts.connected -= peer.connected
        del self._peers[peer.socket.fileno()]
        peer.socket.close()  # removes it from the epoll, too
        self._ended.append(peer.index)


def latest(log: str) -> Counts:
    """The counters of the last complete line; zeros if there is none."""
    printed = [line for line in log.splitlines() if line.startswith("{") and line.endswith("}")]
    return Counts(**json.loads(printed[-1])) if printed else Counts()


def affordable(count: int) -> int:
    """`count`, limited by the descriptors of this process. Raises the soft limit to the hard one."""
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
    attackers.run(min(given.seconds, MAX_SECONDS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
