"""Ports that a process can come back to."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Generator

from services.cli.ports import is_free

HOST = "127.0.0.1"
FIRST, BEYOND = 20_000, 32_000
PORTS_IN_A_BLOCK = 40


def steady_ports() -> Generator[int, None, None]:
    """Free ports below the range that the kernel takes source ports from, in a block that this run alone uses.

    A part that is killed comes back on its port. In the kernel's range somebody's outgoing connection may have taken
    it meanwhile, or a client that knocks there while nobody listens may be connected to itself; and another run on the
    same machine must not take it for free. The block's first port, held while the generator lives, keeps it.
    """
    blocks = list(range(FIRST, BEYOND, PORTS_IN_A_BLOCK))
    random.shuffle(blocks)
    for first in blocks:
        with socket.socket() as claim, contextlib.suppress(OSError):
            claim.bind((HOST, first))
            yield from (port for port in range(first + 1, first + PORTS_IN_A_BLOCK) if is_free(HOST, port))
