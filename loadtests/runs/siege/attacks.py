"""The kinds of attackers, as data; `attackers` executes them.

Every attacker reconnects after its connection is closed. The slow attacks cost the attacker almost nothing: slowloris
(CVE-2007-6750), and peers that never read (the "sockstress" and "slow read" family, CVE-2008-4609).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loadtests.cluster.stand import key_of

GUEST = "guest"  # a tenant with a valid key that attacks
FEW_SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 10))
MANY_SOURCES = tuple(f"127.0.1.{number}" for number in range(1, 255))
MIB = 1_048_576
SMALL_RECEIVE_BUFFER = 2048
SHORTEST_GET = b"GET / HTTP/1.1\r\n\r\n"  # 18 bytes
HOST = "host: 127.0.0.1\r\n"


class Opening(NamedTuple):
    """The first bytes of a connection. `half_closes`: it sends FIN in place of its first drip, and stays open."""

    data: bytes = b""
    half_closes: bool = False


@dataclass(frozen=True, slots=True)
class Attack:
    """`count` connections. Each sends one of the openings (in turn), then `drip` every `drip_s` seconds; none reads.

    `receive_bytes`: the socket's receive buffer (0: the system default). `repeats` is sent after the opening, again and
    again, as fast as it is accepted. `bytes_per_s` limits all connections together. `exhausts`: the attack takes every
    connection of the listener by design, so new honest connections have no target.
    """

    name: str
    about: str
    count: int
    openings: tuple[Opening, ...]
    drip: bytes = b""
    drip_s: float = 2.0
    repeats: bytes = b""
    receive_bytes: int = 0
    bytes_per_s: float = 16.0 * MIB
    sources: tuple[str, ...] = FEW_SOURCES
    exhausts: bool = False


def _get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\n{HOST}{more}\r\n".encode("ascii")


def _post(length: int, key: str = "") -> bytes:
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    return (
        f"POST /v1/completions HTTP/1.1\r\n{HOST}content-type: application/json\r\n"
        f"{authorization}content-length: {length}\r\n\r\n"
    ).encode("ascii")


PAGE = "/openapi.json"
FEW_PAGES = 5 * _get(PAGE)  # more than the kernel buffers, less than uvloop's write limit of 64 KiB
PADDED = 40 * _get("/", f"x-padding: {12_000 * 'a'}\r\n")  # makes Linux widen the receive window, so reads get larger
FEW_AND_CLOSE = 4 * _get(PAGE) + _get(PAGE, "connection: close\r\n")
BODY = b'{"prompt": "' + MIB * b"a"
ALMOST_A_MIB = BODY[: MIB - 64]  # the body stays incomplete
IDLE = (Opening(), Opening(_get("/health")))  # one sends nothing, one sends a single request

ATTACKS = (
    Attack(
        "never_read", "clients that ask for large pages and never read: a few pages, many, or a few and then FIN", 1000,
        (Opening(FEW_AND_CLOSE), Opening(64 * _get(PAGE)), Opening(FEW_PAGES, half_closes=True)),
        drip=b"\r\n", drip_s=5.0, receive_bytes=SMALL_RECEIVE_BUFFER,
    ),  # the drip lets the kernel report that the router has closed; a client that does not read would not notice
    Attack(
        "slowloris", "clients that send a byte of a header, or of a body with a key, every two seconds", 1000,
        (Opening(b"GET / HTTP/1.1\r\n" + HOST.encode() + b"x-a: "), Opening(_post(MIB // 2, key_of(GUEST)))), drip=b"a",
    ),
    Attack("idle", "connections that send no request, or one", 10_000, IDLE),
    Attack(
        "idle_spread", "the same from 254 addresses, so that only the limit on all connections applies", 10_000, IDLE,
        sources=MANY_SOURCES, exhausts=True,
    ),
    Attack(
        "flood", "pipelines of GETs of 18 bytes behind responses that are not read", 100,
        (Opening(16 * _get(PAGE)), Opening(PADDED + 16 * _get(PAGE))),
        repeats=14_000 * SHORTEST_GET, receive_bytes=SMALL_RECEIVE_BUFFER,
    ),
    Attack("bodies", "bodies of 1 MiB without a key, all but the last 64 bytes", 100,
           (Opening(_post(MIB) + ALMOST_A_MIB),)),
    Attack("bodies_with_key", "the same with the key of another tenant", 100,
           (Opening(_post(MIB, key_of(GUEST)) + ALMOST_A_MIB),)),
)  # fmt: skip
BY_NAME = {attack.name: attack for attack in ATTACKS}
