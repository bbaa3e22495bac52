"""Where load may go: this machine, or the router of the compose network. Nowhere else, whatever is typed."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

COMPOSE_NAME = "router"


def refusal(host: str | None) -> str:
    """Why this host must not be loaded; empty if it may be."""
    parts = urlsplit(host or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{host!r} is not an http:// address"
    if parts.hostname in ("localhost", COMPOSE_NAME) or _loopback(parts.hostname):
        return ""
    return f"{parts.hostname} is neither this machine nor the compose network's `{COMPOSE_NAME}`: no load is sent there"


def _loopback(hostname: str) -> bool:
    try:
        return ip_address(hostname).is_loopback
    except ValueError:
        return False
