"""Which hosts may be loaded: this machine and the compose network's router; others need `--beyond-this-machine`."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

COMPOSE_NAME = "router"
BEYOND = "--beyond-this-machine"


def refusal(host: str | None, *, beyond: bool = False) -> str:
    """Why this host must not be loaded; empty if it may be. `beyond` permits other machines."""
    parts = urlsplit(host or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{host!r} is not an http:// address"
    if beyond or _is_here(parts.hostname):
        return ""
    return (
        f"{parts.hostname} is neither this machine nor the compose network's `{COMPOSE_NAME}`: no load is sent there "
        f"without {BEYOND}"
    )


def is_beyond(host: str) -> bool:
    """Whether this host is another machine."""
    return not _is_here(urlsplit(host).hostname or "")


def _is_here(hostname: str) -> bool:
    try:
        return hostname in ("localhost", COMPOSE_NAME) or ip_address(hostname).is_loopback
    except ValueError:
        return False
