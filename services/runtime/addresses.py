"""Which addresses only this machine reaches."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name other than localhost may resolve to anything."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def names_loopback(host: bytes | None) -> bool:
    """Whether the client knows us by a name that cannot have been pointed here from outside (DNS rebinding)."""
    if host is None:
        return True
    name = host.decode("latin-1")
    if not name.endswith("]"):
        head, colon, port = name.rpartition(":")
        name = head if colon and port.isdigit() else name
    return is_loopback(name)
