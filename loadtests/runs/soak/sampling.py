"""What a process and its children hold, read from /proc; and the tasks of its event loop, which it tells itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from loadtests.cluster.processes import family, get

TASKS = "python_asyncio_tasks "
KIB = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """At a moment: resident memory without what processes share on purpose, descriptors, threads, tasks.

    A page of PostgreSQL's shared buffers is resident in every process that has touched it; counting it once for each
    would call a cache that fills a leak. `tasks` is None where nobody tells.
    """

    at_s: float
    memory_bytes: float
    descriptors: float
    threads: float
    tasks: float | None = None


async def sample(pid: int, at_s: float, metrics_url: str = "") -> Sample | None:
    """Of a process and its children together; None where it has ended."""
    tasks = await _tasks(metrics_url) if metrics_url else None
    members = [each for each in map(_of, family(pid)) if each is not None]
    if not members:
        return None
    memory, descriptors, threads = (sum(column) for column in zip(*members, strict=True))
    return Sample(at_s, memory, descriptors, threads, tasks)


def _of(pid: int) -> tuple[float, float, float] | None:
    """Bytes, descriptors, threads."""
    folder = Path(f"/proc/{pid}")
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        descriptors = len(os.listdir(folder / "fd"))
    except (OSError, ValueError):
        return None
    kib = _number(status.get("VmRSS", "0")) - _number(status.get("RssShmem", "0"))
    return kib * KIB, descriptors, _number(status.get("Threads", "0"))


def _number(text: str) -> int:
    return int(text.split()[0])


async def _tasks(url: str) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        page = (await asyncio.to_thread(get, url)).decode()
        return next((float(line[len(TASKS) :]) for line in page.splitlines() if line.startswith(TASKS)), None)
    return None
