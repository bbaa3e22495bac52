"""Which Host and which Origin a listener answers (docs/operations/access.md).

DNS rebinding points a page's own name at 127.0.0.1, so a listener checks the name in Host. A page of another site may
send a POST without reading the answer, so writes are refused unless Origin is this host; `Origin: null` (a file, a
sandboxed frame) is another site. Programs send no Origin.
"""

from __future__ import annotations

from services.runtime.addresses import is_fixed, is_loopback, name_of, names_loopback
from services.runtime.errors import BadInput, WeirError
from services.runtime.http import Exchange

ANY = "*"
MAX_CACHED_HOSTS = 64  # accepted Host values; usually two or three
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class HostCheck:
    """A `HeadCheck`: 421 (RFC 9110 section 15.5.20) for a Host that may be another site's name.

    On a loopback `host` it accepts loopback names, elsewhere also addresses and names without a dot, and ALLOWED_HOSTS.
    """

    __slots__ = ("_any", "_named", "_own", "known")

    def __init__(self, host: str, allowed: str = "") -> None:
        self._own = names_loopback if is_loopback(host) else is_fixed
        self._named = allowed_hosts(allowed)
        self._any = ANY in self._named
        self.known: set[bytes | None] = set()

    def __call__(self, exchange: Exchange, body_bytes: int) -> WeirError | None:
        host = exchange.header(b"host")
        if host in self.known:
            return None
        if not self.takes(host):
            return misdirected(host)
        if len(self.known) < MAX_CACHED_HOSTS:
            self.known.add(host)
        return None

    def takes(self, host: bytes | None) -> bool:
        return self._any or self._own(host) or (host is not None and name_of(host) in self._named)


class PageCheck:
    """A `HeadCheck` by Host and Origin in one: a Host accepted before, without Origin, costs two look-ups."""

    __slots__ = ("_host", "_known")

    def __init__(self, host: str, allowed: str = "") -> None:
        self._host = HostCheck(host, allowed)
        self._known = self._host.known

    def __call__(self, exchange: Exchange, body_bytes: int) -> WeirError | None:
        named = exchange.named
        if named.get(b"host") in self._known and b"origin" not in named:
            return None
        return self._host(exchange, body_bytes) or origin_check(exchange, body_bytes)


def allowed_hosts(text: str) -> frozenset[str]:
    """The names in ALLOWED_HOSTS, comma-separated, as `name_of` returns them."""
    names = filter(None, map(str.strip, text.split(",")))
    return frozenset(name_of(name.encode("latin-1", "replace")) for name in names)


def misdirected(host: bytes | None) -> WeirError:
    """421, with what to do if the name is legitimate."""
    name = name_of(host or b"")[:100]
    message = (
        f"the host name {name!r} is not accepted: use the address or localhost; "
        "if the name is yours, add it to ALLOWED_HOSTS"
    )
    return BadInput(message, status=421, code="misdirected_request")


def origin_check(exchange: Exchange, body_bytes: int) -> WeirError | None:
    """A `HeadCheck`: 403 for a write from a page of another site."""
    if exchange.method not in WRITES:
        return None
    origin = exchange.header(b"origin")
    if origin is None or is_own_origin(origin, exchange.header(b"host")):
        return None
    return BadInput("cross-origin request rejected: Origin does not match Host", status=403, code="forbidden")


def is_own_origin(origin: bytes, host: bytes | None) -> bool:
    """Whether the page was loaded from this host."""
    name = (host or b"").lower()
    return bool(name) and origin.lower() in (b"http://" + name, b"https://" + name)
