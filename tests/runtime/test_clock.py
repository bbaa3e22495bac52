"""What people read as a date is asked of the loop that has one of its own, and of the machine otherwise."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Coroutine
from typing import Any

from loadtests.cluster.loop import SimLoop
from services.runtime.clock import unix_milliseconds, unix_nanoseconds, unix_seconds, wall_clock
from services.runtime.guard import GuardLimits
from services.runtime.log import Log
from services.runtime.serve import HttpListener
from services.runtime.telemetry import metrics_app, new_registry
from services.runtime.tracing import FinishedTrace, Tracer
from tests.virtual import new_simulation

EPOCH = 1_000_000_000.5  # 2001-09-09 01:46:40.5 UTC


class DatedLoop(SimLoop):
    """A loop on virtual time that brings its own wall clock."""

    def __init__(self) -> None:
        super().__init__(new_simulation())

    def unix_time(self) -> float:
        return EPOCH + self.time()


def run_dated(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=DatedLoop) as runner:
        runner.run(main())


def test_a_loop_that_brings_a_wall_clock_is_asked_for_it() -> None:
    async def main() -> None:
        await asyncio.sleep(2.0)
        assert wall_clock()() == EPOCH + 2.0
        assert unix_seconds() == 1_000_000_002
        assert unix_milliseconds() == 1_000_000_002_500
        assert unix_nanoseconds() == 1_000_000_002_500_000_000

    run_dated(main)


def test_without_one_or_without_a_loop_it_is_the_machines() -> None:
    async def main() -> None:
        assert wall_clock() is time.time

    asyncio.run(main())
    assert wall_clock() is time.time
    assert abs(unix_seconds() - time.time()) < 60


def test_the_date_of_an_answer_is_the_loops() -> None:
    class Open(DatedLoop):
        async def create_server(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.Server(self, [], None, None, 0, None)  # type: ignore[arg-type]

    async def main() -> None:
        listener = HttpListener(metrics_app(new_registry(), Log("test", stream=io.BytesIO())), GuardLimits(), 30.0)
        await listener.open(None)  # type: ignore[arg-type]
        assert b"Sun, 09 Sep 2001 01:46:40 GMT" in listener._shared.date_line
        await asyncio.sleep(1.5)
        assert b"Sun, 09 Sep 2001 01:46:41 GMT" in listener._shared.date_line
        await listener.close(0.0)

    with asyncio.Runner(loop_factory=Open) as runner:
        runner.run(main())


def test_a_trace_begins_at_the_loops_wall_time() -> None:
    class Kept:
        def __init__(self) -> None:
            self.told: list[FinishedTrace] = []

        def take(self, told: FinishedTrace) -> None:
            self.told.append(told)

        def close(self, within_s: float) -> None:
            pass

    kept = Kept()

    async def main() -> None:
        Tracer(kept).begin(None, 0.0).end("x", "server", 1.0, {})

    run_dated(main)
    assert kept.told[0].unix_ns == 1_000_000_000_500_000_000
