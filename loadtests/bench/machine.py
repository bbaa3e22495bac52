"""How processes are pinned and watched while they are measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil


def cores() -> tuple[set[int], set[int]]:
    """One core for the router, another for everything else; the same one where there is only one."""
    have = sorted(os.sched_getaffinity(0))
    return {have[0]}, {have[-1]}


@contextlib.contextmanager
def pinned(to: set[int]) -> Iterator[None]:
    """This process on these cores, for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, to)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.asynccontextmanager
async def process(
    args: Sequence[str], pin: set[int] | None = None, env: dict[str, str] | None = None, out: IO[bytes] | None = None
) -> AsyncIterator[int]:
    """A child process of Python, pinned to cores or free to use all of them; its pid. Ends with the block."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, *args, env={**os.environ, **(env or {})},
        stdout=out or asyncio.subprocess.DEVNULL, preexec_fn=(lambda: os.sched_setaffinity(0, pin)) if pin else None,
    )  # fmt: skip
    try:
        yield child.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(10):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()


def rss_mb(pid: int) -> float:
    """Resident memory of a process and of those it has started."""
    return sum(_rss_mb(each) for each in [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))])


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far, all its threads together, to the nanosecond.

    The usual figures count ticks of 10 ms.
    """
    spent_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            spent_ns += int((thread / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


async def until_ready(url: str, seconds: float = 30.0) -> float:
    """Seconds until GET answers 200."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() - began < seconds:
        with contextlib.suppress(OSError):
            status = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=1).status)
            if status == 200:
                return loop.time() - began
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{url} was not ready within {seconds:g} s")
