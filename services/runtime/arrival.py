"""How long requests lay in the kernel before this process read them.

A process that was busy, or stopped, reads what came meanwhile as if it had come just now. The clients have waited all
the same, so a deadline counts from the arrival. Linux keeps the time since the last segment with data (`tcp_info`,
`tcpi_last_data_recv`). Asking costs 3 us under uvloop, so one request in EVERY_S is asked for, and each one for
DOUBT_S after a wait was found: a process that stood still for longer than EVERY_S asks at its first read.
"""

from __future__ import annotations

import socket
import sys
from math import inf
from typing import Any

EVERY_S = 0.05
DOUBT_S = 1.0
NOTICED_MS = 10
"""Less is no wait but the step of the kernel's clock."""
TCP_INFO = getattr(socket, "TCP_INFO", None)
LAST_DATA_RECV = slice(52, 56)


class Arrivals:
    """Of one listener. `ask_at`: from then on the next request is asked for; never, where it is no Linux."""

    __slots__ = ("_doubt_until", "ask_at")

    def __init__(self) -> None:
        self.ask_at = inf if TCP_INFO is None else -inf
        self._doubt_until = -inf

    def unread_s(self, sock: Any, now: float) -> float:
        """Seconds since the last bytes arrived at `sock`, of which the last have just been read; 0.0 for no wait."""
        waited_ms = unread_ms(sock)
        if waited_ms <= NOTICED_MS:
            waited_ms = 0
        else:
            self._doubt_until = now + DOUBT_S
        self.ask_at = now if now < self._doubt_until else now + EVERY_S
        return waited_ms / 1000


def unread_ms(sock: Any) -> int:
    """Milliseconds since the last segment with data; 0 for what is not TCP, or closed."""
    assert TCP_INFO is not None
    try:
        found = sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, LAST_DATA_RECV.stop)
    except (AttributeError, OSError):
        return 0
    return int.from_bytes(found[LAST_DATA_RECV], sys.byteorder)
