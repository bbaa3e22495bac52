"""Event loops on a virtual clock: one per simulated process, all driven by one `Simulation`. See
docs/architecture/world.md.

    with asyncio.Runner(loop_factory=SimLoop) as runner:      # one process, for a test: or `run(main())`
        runner.run(main())

    simulation = Simulation(seed=7)                           # several, for a cluster
    router = SimLoop(simulation, "router", "10.0.0.1")
    SimLoop(simulation, "lab", "10.0.0.100").run_until_complete(main())

Computing takes no virtual time. When nothing is ready, the clock moves to the next event. The seed alone determines the
order: loops that are ready at the same instant run in a seeded random order. `Simulation.digest` covers all events.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import sys
import threading
from asyncio import events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

from loadtests.cluster.network import Address, Listening, Network, SimServer

T = TypeVar("T")

EPOCH_S = 1_700_000_000.0
"""The wall clock's offset in seconds: the same in every run."""
BEGINS_S = 1000.0
"""The monotonic clock at the start, in seconds; never 0."""
RESOLUTION_S = 1e-9
MAX_CANCELLED = 100  # cancelled timers in the heap before it is cleaned


class Deadlock(RuntimeError):
    """Every task waits and no timer is set."""


class Simulation:
    """The clock, the future events and the loops. `rng` makes all random choices."""

    def __init__(self, seed: int | str = 0) -> None:
        self.rng = Random(f"simulation {seed}")
        self.now = BEGINS_S
        self.loops: list[SimLoop] = []
        self.network = Network(self)
        self.watch: Callable[[str, str, str], None] | None = None  # called with (who, what, detail) of each event
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self.runnable: list[SimLoop] = []  # loops with callbacks to run
        self._digest = blake2b(digest_size=16)

    def at(self, when: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action` at `when` (seconds of the simulation), in no loop's context."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action, arguments))

    def note(self, who: str, what: str, detail: str = "", data: bytes = b"") -> None:
        """Add an event to the digest and the trace."""
        self._digest.update(b"%r %b %b %b" % (self.now, who.encode(), what.encode(), detail.encode()))
        if data:
            self._digest.update(data)
        if self.watch is not None:
            self.watch(who, what, detail)

    @property
    def digest(self) -> str:
        """128 bits of all events so far, in hexadecimal."""
        return self._digest.hexdigest()

    def turn(self) -> None:
        """Run one ready loop, or move the clock to the next event. Raises Deadlock."""
        if runnable := self.runnable:
            count = len(runnable)
            loop = runnable.pop(self.rng.randrange(count) if count > 1 else 0)
            loop.run_turn()
            return
        if not self._events:
            raise Deadlock("every task waits and no timer is set: this would wait for ever")
        when, _, action, arguments = heapq.heappop(self._events)
        if when > self.now:
            self.now = when
        action(*arguments)

    def forget(self, loop: SimLoop) -> None:
        if loop in self.runnable:
            self.runnable.remove(loop)

    def ended(self, loop: SimLoop) -> None:
        """Remove an ended process and close its sockets."""
        self.forget(loop)
        if loop in self.loops:
            self.loops.remove(loop)
        self.network.close_all(loop)

    def close(self) -> None:
        for loop in list(self.loops):
            loop.kill()
        self._events.clear()


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one process. `name` appears in traces, `address` in the network."""

    def __init__(self, simulation: Simulation | None = None, name: str = "process", address: str = "127.0.0.1") -> None:
        super().__init__()
        self._clock_resolution = RESOLUTION_S
        self.simulation = simulation or Simulation()
        self.name = name
        self.network = self.simulation.network
        self.host = self.network.host(address, name)
        self.ahead_s = 0.0  # this process's clocks beyond the simulation's
        self.wall_ahead_s = 0.0  # its wall clock alone
        self.frozen = False
        self.killed = False
        self.after_turn: Callable[[], None] | None = None
        self._marked = False
        self._in_turn = False
        self._wakes_at = float("inf")
        self.simulation.loops.append(self)

    # Clocks

    def time(self) -> float:
        """This process's monotonic clock in seconds."""
        return self.simulation.now + self.ahead_s

    def unix_time(self) -> float:
        """Seconds since the epoch on this process's wall clock."""
        return EPOCH_S + self.simulation.now + self.ahead_s + self.wall_ahead_s

    def jump(self, seconds: float) -> None:
        """Move this process's clock forward, as after a suspended machine; timers due meanwhile are late."""
        assert seconds >= 0, f"a monotonic clock does not go back: {seconds}"
        self.ahead_s += seconds
        self._look_at_timers()

    # Turns

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._closed:
            if self.killed:
                return handle  # of a killed process
            self._check_closed()
        self._ready.append(handle)
        if not self._marked:
            self._mark()
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if self._closed:
            if self.killed:
                return timer
            self._check_closed()
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        if not self._in_turn and when - self.ahead_s < self._wakes_at:
            self._look_at_timers()
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.simulation.now + self.ahead_s + delay, callback, *args, context=context)

    def _mark(self) -> None:
        self._marked = True
        if not self.frozen and not self._in_turn:
            self.simulation.runnable.append(self)

    def run_turn(self) -> None:
        """Run what is ready now, but not what becomes ready meanwhile. Then schedule the next timer."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        self._in_turn = True
        ready = self._ready
        try:
            self._collect_timers()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                if self._closed or self.frozen:
                    break
        finally:
            self._in_turn = self._marked = False
            events._set_running_loop(outer)
        if self._closed:
            return
        if self.after_turn is not None:
            self.after_turn()
        if ready:
            self._mark()
        else:
            self._look_at_timers()

    def _collect_timers(self) -> None:
        """Move due timers to the ready queue."""
        scheduled = self._scheduled
        until = self.simulation.now + self.ahead_s + RESOLUTION_S
        if self._timer_cancelled_count > MAX_CANCELLED and self._timer_cancelled_count * 2 > len(scheduled):
            for timer in scheduled:
                timer._scheduled = not timer._cancelled
            scheduled[:] = [timer for timer in scheduled if not timer._cancelled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when < until):
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(timer)

    def _look_at_timers(self) -> None:
        """Schedule a wake-up at the first timer."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not scheduled:
            return
        due = max(scheduled[0]._when - self.ahead_s, self.simulation.now)
        if due < self._wakes_at or self._wakes_at <= self.simulation.now:
            self._wakes_at = due
            self.simulation.at(due, self._woken, due)

    def _woken(self, due: float) -> None:
        if due == self._wakes_at:
            self._wakes_at = float("inf")
        if not self._closed and not self._marked:
            self._mark()

    def timers(self) -> list[asyncio.TimerHandle]:
        return [timer for timer in self._scheduled if not timer.cancelled()]

    # Faults

    def freeze(self) -> None:
        """Run nothing (SIGSTOP). The kernel still accepts connections and receives bytes."""
        if not self.frozen:
            self.frozen = True
            self.simulation.forget(self)

    def thaw(self) -> None:
        """Run again; timers due meanwhile are late."""
        if self.frozen and not self.killed:
            self.frozen, self._marked = False, True
            self.simulation.runnable.append(self)

    def kill(self) -> None:
        """End it like SIGKILL: nothing runs again, and the kernel closes its sockets."""
        if self._closed:
            return
        self.killed = self._closed = True
        self.set_exception_handler(lambda *_: None)  # answers after its end are not errors
        self.simulation.ended(self)
        self._bury()

    def _bury(self) -> None:
        """Free the memory. Closed coroutines run `finally` blocks without effect."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for task in sorted(asyncio.all_tasks(self), key=id):
                task._log_destroy_pending = False
                coroutine = task.get_coro()
                if coroutine is not None:
                    with contextlib.suppress(BaseException):
                        coroutine.close()
            self._ready.clear()
            self._scheduled.clear()
        finally:
            events._set_running_loop(outer)

    # Running

    def run_forever(self) -> None:
        """Drive the whole simulation until this loop is stopped."""
        self._check_closed()
        self._check_running()
        hooks = sys.get_asyncgen_hooks()
        simulation = self.simulation
        try:
            self._thread_id = threading.get_ident()
            sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook)
            if self._ready and not self._marked:
                self._mark()
            while not self._stopping:
                simulation.turn()
        finally:
            self._stopping = False
            self._thread_id = None
            sys.set_asyncgen_hooks(*hooks)

    def close(self) -> None:
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self._closed:
            return
        self.simulation.ended(self)
        super().close()

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Threads have another clock: call the function in the next turn instead."""
        future: asyncio.Future[T] = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except BaseException as error:
                future.set_exception(error)

        self.call_soon(call)
        return future

    # Sockets

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """As asyncio's. Raises ConnectionRefusedError, socket.gaierror; TLS and given sockets are not simulated."""
        if ssl is not None or options.get("sock") is not None or host is None or port is None:
            raise NotImplementedError("the simulated network joins by host and port, without TLS")
        local = options.get("local_addr")
        return await self.network.connect(self, protocol_factory, host, port, local[0] if local else self.host.address)

    async def create_server(  # returns our own Server
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        sock: Any = None,
        backlog: int = 100,
        start_serving: bool = True,
        **options: Any,
    ) -> SimServer:
        """As asyncio's; `sock` is a result of `bind`."""
        if sock is None:
            sock = self.network.bind(self, host or "0.0.0.0", port or 0)
        if not isinstance(sock, Listening):
            raise TypeError(f"{sock!r} is a socket of the kernel: bind with the loop's own `bind`")
        return sock.serve(self, protocol_factory, backlog)

    def bind(self, host: str, port: int, variable: str = "a port") -> Listening:
        """A listening socket in this network, for `services.runtime.serve.running`. Raises OSError if the port is
        taken.
        """
        return self.network.bind(self, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        return self.network.addresses(self, host, port)

    async def getnameinfo(self, sockaddr: Address, flags: int = 0) -> tuple[str, str]:
        return sockaddr[0], str(sockaddr[1])

    def _write_to_self(self) -> None:
        """There are no other threads."""

    def __repr__(self) -> str:
        state = "killed" if self.killed else "frozen" if self.frozen else "open"
        return f"<SimLoop {self.name} {state} at {self.time():.6f}>"


def run(main: Coroutine[Any, Any, T], seed: int | str = 0) -> T:
    """Run a coroutine to its end in virtual time, in a simulation of one process."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(Simulation(seed))) as runner:
        return runner.run(main)
