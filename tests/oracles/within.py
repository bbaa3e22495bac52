"""Services inside of one simulated process: listeners in memory, a clock that jumps, and chance from a seed.

Two runs of the same code say the same, to the byte: `loadtests.cluster.loop` has the loop, and every service takes its
chance, its log and its listening sockets from whoever starts it.
"""

from __future__ import annotations

import asyncio
import io
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

from loadtests.cluster.loop import SimLoop
from services.runtime.log import Log
from services.runtime.serve import Process
from tests.virtual import running_here


def sim_loop() -> SimLoop:
    """The running one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop


def given(name: str) -> dict[str, Any]:
    """What `app.build` of a service takes beside its settings: chance that is the same each time, and a quiet log."""
    return {"rng": Random(1), "log": quiet(name)}


def quiet(name: str) -> Log:
    """A log that nobody reads, and that needs no thread."""
    return Log(name, "ERROR", stream=io.BytesIO(), clock=sim_loop().unix_time, threaded=False)


def within(process: Process) -> AbstractAsyncContextManager[Process]:
    """Run it here."""
    return running_here(process)
