"""What a confined child tries, by name: each answer is "done", or the name of the error that stopped it."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def main(arguments: Sequence[str], held: Sequence[str]) -> None:
    name, *words = arguments
    said = {"held": list(held), "environment": dict(os.environ), "said": tried(name, words)}
    sys.stdout.write(json.dumps(said))


def tried(name: str, words: Sequence[str]) -> str:
    try:
        return ATTEMPTS[name](*words) or "done"
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def connect(host: str, port: str) -> None:
    with socket.create_connection((host, int(port)), timeout=5):
        pass


def datagram(host: str, port: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", (host, int(port)))


def write(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write("x")


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def sleep(note: str) -> None:
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    time.sleep(float(note))


def limit(name: str) -> str:
    return str(resource.getrlimit(getattr(resource, f"RLIMIT_{name}")))


ATTEMPTS: dict[str, Callable[..., str | None]] = {
    "connect": connect,
    "datagram": datagram,
    "write": write,
    "read": lambda path: str(len(Path(path).read_bytes())),
    "execute": lambda path: os.execv(path, [path]),
    "fork": fork,
    "sleep": sleep,
    "limit": limit,
}
