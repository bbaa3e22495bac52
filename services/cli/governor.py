"""`weir governor`: its client for the stack that runs here, a governor alone, and a ping."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from services.cli import parts
from services.cli.config import LabSettings
from services.cli.lease import running_stack
from services.runtime.settings import environment

PING = b'{"v":0,"verb":"ping","job":"J_status","seq":1,"ttl_ms":0}\n'
PONG = b'{"v":0,"verb":"confirm","job":"J_status","seq":2,"ttl_ms":0,"status":"ok"'


def send(settings: LabSettings, words: Sequence[str]) -> NoReturn:
    """Become the governor's client. An `--addr` in `words` overrides the address of this stack."""
    stack = running_stack(settings.folder)
    address = stack.governor_address if stack else settings.governor_address
    command = [sys.executable, "-m", "services.governor.client", "--addr", address, *words]
    os.execve(sys.executable, command, environment())


def run(settings: LabSettings) -> NoReturn:
    os.execve(sys.executable, [sys.executable, "-m", "services.governor"], {**environment(), **own(settings)})


def own(settings: LabSettings) -> dict[str, str]:
    """The settings of a governor in `weir up`, with METRICS_PORT as set."""
    stack = running_stack(settings.folder)
    env = dict(parts.governor(settings, stack.router_url if stack else settings.router_url).env)
    if settings.metrics_port:
        env["METRICS_PORT"] = str(settings.metrics_port)
    return env


def answers(address: str, within_s: float) -> bool:
    """Whether a governor answers a ping, with or without a free slot."""
    host, _, port = address.rpartition(":")
    body = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), within_s) as connection:
            connection.settimeout(within_s)
            connection.sendall(PING)
            while len(body) < len(PONG) and (more := connection.recv(4096)):
                body += more
    except OSError:
        return False
    return body.startswith(PONG)
