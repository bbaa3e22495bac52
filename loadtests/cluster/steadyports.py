"""Ports that a restarted process can use again."""

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
    """Free ports below the kernel's range of source ports, in a block that only this run uses.

    A restarted part uses its old port. In the kernel's range an outgoing connection could have taken it meanwhile, or a
    client without a server could connect to itself. The block's first port, bound while the generator lives, reserves
    the block against other runs.
    """
    blocks = list(range(FIRST, BEYOND, PORTS_IN_A_BLOCK))
    random.shuffle(blocks)
    for first in blocks:
        with socket.socket() as claim, contextlib.suppress(OSError):
            claim.bind((HOST, first))
            yield from (port for port in range(first + 1, first + PORTS_IN_A_BLOCK) if is_free(HOST, port))
