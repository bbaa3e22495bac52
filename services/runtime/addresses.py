"""Which addresses only this machine can reach, and which Host names DNS rebinding cannot use."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host. Names other than localhost may resolve to any address."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def name_of(host: bytes) -> str:
    """The name in a Host header: without port, brackets and the final dot, in lower case."""
    name = host.decode("latin-1").lower()
    if not name.endswith("]"):
        head, colon, port = name.rpartition(":")
        name = head if colon and port.isdigit() else name
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1]
    return name.removesuffix(".")


def names_loopback(host: bytes | None) -> bool:
    """Whether the Host is absent or a loopback name, so that no DNS rebinding is possible."""
    return host is None or is_loopback(name_of(host))


def is_fixed(host: bytes | None) -> bool:
    """Whether the Host is absent, an address, localhost or a name without a dot, which DNS rebinding cannot use."""
    if host is None:
        return True
    name = name_of(host)
    try:
        ip_address(name)
    except ValueError:
        return bool(name) and "." not in name
    return True
