"""Starts several equal router processes on one port, and keeps them running (decision record 086).

The parent holds one listening socket for each process (SO_REUSEPORT: the kernel spreads connections over them) as long
as it runs, so that connections that wait in one outlive its process. `plan` decides; this module does it. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import Process as Started
from collections.abc import Iterable

from services.router.config import RouterSettings
from services.router.operating.adminkey import AdminKey
from services.router.processes.child import HAND_OVER_S, Place
from services.router.processes.front import Front, is_open
from services.router.processes.link import LAST, LEAVING, READY
from services.router.processes.plan import Action, Finish, Notify, Plan, Release, Say, Signal, StartChild, exit_text
from services.runtime.guard import GuardLimits
from services.runtime.internal import inner_checks
from services.runtime.log import Log
from services.runtime.serve import (
    METRICS_CONNECTIONS,
    METRICS_INCOMING_BYTES,
    SEND_BUFFER_BYTES,
    HttpListener,
    listening_socket,
)
from services.runtime.settings import environment
from services.runtime.starting import CannotStart, PortTaken

MODULE = "services.router"
MAX_NAME = 64


def run_parent(settings: RouterSettings) -> int:
    """Run until a signal, and return the exit status."""
    log = Log("router", settings.log_level)
    try:
        return asyncio.run(_run(settings, log))
    except CannotStart as error:
        sys.stderr.write(f"router: {error}\n")
        return error.exit_status
    finally:
        log.close()


async def _run(settings: RouterSettings, log: Log) -> int:
    count = settings.router_processes
    public = public_sockets(settings.host, settings.router_port, count)
    own = listening_socket(settings.metrics_host, settings.metrics_port, "METRICS_PORT")
    metrics = [listening_socket("127.0.0.1", 0, "METRICS_PORT") for _ in range(count)]
    parent = Parent(settings, public, metrics, log)
    shared_token = settings.shared_token
    checks = inner_checks(
        settings.metrics_host, token=shared_token, allowed_hosts=settings.allowed_hosts, is_open=is_open
    )
    limits = GuardLimits(connections=METRICS_CONNECTIONS, incoming_bytes=METRICS_INCOMING_BYTES)
    listener = HttpListener(parent.front, limits, 30.0, checks=checks)
    await listener.open(own)
    try:
        return await parent.run(own.getsockname()[1])
    finally:
        await listener.close(1.0)


def public_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """A bound socket for each process; it listens once that process does. Raises PortTaken."""
    probe = listening_socket(host, port, "ROUTER_PORT")  # without SO_REUSEPORT: no other program may listen there
    port = probe.getsockname()[1]
    probe.close()
    made: list[socket.socket] = []
    for _ in range(count):
        sock = socket.socket(probe.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            sock.bind((host, port))
        except OSError as error:
            close_all(made)
            raise PortTaken(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with ROUTER_PORT"
            ) from None
    return made


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


class Parent:
    """The processes, and their links. `public`, `metrics`: the sockets of each process, by its number."""

    def __init__(
        self, settings: RouterSettings, public: list[socket.socket], metrics: list[socket.socket], log: Log
    ) -> None:
        drain_s = settings.drain_timeout_s
        hand_over_s = max(HAND_OVER_S, settings.drain_delay_s) + 2 * drain_s
        self._plan = Plan(len(public), leave_s=settings.leave_s, hand_over_s=hand_over_s)
        self._settings = settings
        self._public = public
        self._metrics = metrics
        self._log = log
        self._started: dict[int, Started] = {}
        self._links: dict[int, asyncio.StreamWriter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        admin_token = settings.admin_token.get_secret_value().encode() or settings.shared_token
        self.front = Front(
            self._plan,
            [sock.getsockname()[1] for sock in metrics],
            restart=self._restart,
            pid_of=self._pid_of,
            key=AdminKey(settings.metrics_host, admin_token, log),
            metrics_token=settings.shared_token,
            admin_token=admin_token,
            log=log,
        )

    async def run(self, metrics_port: int) -> int:
        """Start the processes, and keep them running until a signal. Returns the exit status."""
        loop, plan = asyncio.get_running_loop(), self._plan
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self._do(plan.stop(loop.time())))
        loop.add_signal_handler(signal.SIGHUP, lambda: self._do(plan.reload()))
        loop.add_signal_handler(signal.SIGUSR2, self._restart)
        port = self._public[0].getsockname()[1]
        where = {"host": self._settings.host, "port": port, "metrics_port": metrics_port}
        self._log.info("starting router processes", processes=len(plan.children), **where)
        async with asyncio.TaskGroup() as self._lives:
            self._do(plan.tick(loop.time()))
            status = await self._status
        self._log.info("stopped", status=status)
        return status

    def _restart(self) -> None:
        self._do(self._plan.restart(asyncio.get_running_loop().time()))

    def _pid_of(self, index: int) -> int | None:
        started = self._started.get(index)
        return None if started is None else started.pid

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartChild(index):
                    self._lives.create_task(self._live(index))
                case Signal(index, number):
                    with contextlib.suppress(ProcessLookupError, KeyError):
                        self._started[index].send_signal(number)
                case Notify(index, word):
                    with contextlib.suppress(KeyError):
                        self._links[index].write(word)
                case Release():
                    close_all(self._public)
                case Say(level, event, fields):
                    self._log.write(level, event, _readable(fields))
                case Finish(status):
                    self._finish(status)
        self._set_timer()

    def _finish(self, status: int) -> None:
        if self._started:  # a second signal
            self._log.close()
            os._exit(status)  # the kernel kills the processes (PR_SET_PDEATHSIG)
        if not self._status.done():
            self._status.set_result(status)

    def _set_timer(self) -> None:
        loop, at = asyncio.get_running_loop(), self._plan.next_at()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else loop.call_at(at, lambda: self._do(self._plan.tick(loop.time())))

    async def _live(self, index: int) -> None:
        """One process, from its start to its end."""
        loop, plan = asyncio.get_running_loop(), self._plan
        if plan.stopping:  # since it was decided; the sockets are closed
            self._do(plan.ended(index, 0, loop.time()))
            return
        ours, theirs = socket.socketpair()
        place = Place(
            index=index,
            parent=os.getpid(),
            public=tuple(sock.fileno() for sock in self._public),
            metrics=self._metrics[index].fileno(),
            link=theirs.fileno(),
        )
        try:
            started = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                MODULE,
                env={**environment(), **self._variables(index), **place.variables()},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
                pass_fds=[*place.public, place.metrics, place.link],
            )
        except OSError as error:
            ours.close()
            self._log.error("a router process could not be started", process=index, why=error.strerror)
            loop.call_soon(lambda: self._do(plan.ended(index, 1, loop.time())))
            return
        finally:
            theirs.close()
        self._started[index] = started
        if self._plan.stopping:  # since then
            started.send_signal(signal.SIGTERM)
        reader, self._links[index] = await asyncio.open_connection(sock=ours)
        hearing = loop.create_task(self._receive(index, reader))
        status = await started.wait()
        hearing.cancel()
        self._links.pop(index).close()
        del self._started[index]
        self._do(plan.ended(index, status, loop.time()))

    async def _receive(self, index: int, reader: asyncio.StreamReader) -> None:
        loop, plan = asyncio.get_running_loop(), self._plan
        with contextlib.suppress(ConnectionError):
            while word := await reader.read(1):
                if word == READY:
                    self._do(plan.ready(index, loop.time()))
                elif word == LEAVING:
                    self._do(plan.leaving(index, loop.time()))
                elif word == LAST:
                    await self.front.look(index)
                    self._links[index].write(LAST)

    def _variables(self, index: int) -> dict[str, str]:
        """The settings in which a process differs from its parent."""
        name = self._settings.own_name
        last = f"-{index}"
        return {
            "ROUTER_PROCESSES": "1",
            "ROUTER_NAME": name[: MAX_NAME - len(last)] + last,
            "METRICS_HOST": "127.0.0.1",
            "METRICS_PORT": str(self._metrics[index].getsockname()[1]),
        }


def _readable(fields: dict[str, object]) -> dict[str, object]:
    """The fields of a log line, with an exit status for people."""
    status = fields.get("status")
    return {**fields, "status": exit_text(status)} if isinstance(status, int) else fields
