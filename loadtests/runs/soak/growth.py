"""The resources that a process holds, and how fast they grow.

A sample is read from /proc, for a process and its children together. Usage fluctuates under load, so the samples of a
round become one point, their median. The growth is the least-squares slope over the points.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median

from loadtests.cluster.books import total
from loadtests.cluster.processes import family, get
from loadtests.report.figure import Figure

KIB, MIB = 1024, 1024.0 * 1024.0
S_PER_MINUTE = 60.0
MAX_A_MINUTE: Mapping[str, float] = {"memory_mb": 1.0, "descriptors": 2.0, "threads": 1.0, "tasks": 2.0}
"""The limit of the growth a minute."""
STORES_MAX_A_MINUTE: Mapping[str, float] = {**MAX_A_MINUTE, "descriptors": 10.0}
"""The limits of a database, which keeps the files open of each table, index and session that was used."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: resident memory without shared pages, descriptors, threads, tasks.

    A page of PostgreSQL's shared buffers is resident in every process that has touched it. Counted once for each of
    them, a cache that fills would look like a leak. `tasks` is None if the process has no metrics.
    """

    at_s: float
    memory_mb: float
    descriptors: float
    threads: float
    tasks: float | None = None


async def sample(pid: int, at_s: float, metrics_url: str = "") -> Sample | None:
    """A sample of a process and its children together; None if the process has ended."""
    tasks = await _tasks(metrics_url) if metrics_url else None
    members = [each for each in map(_of, family(pid)) if each is not None]
    if not members:
        return None
    memory, descriptors, threads = (sum(column) for column in zip(*members, strict=True))
    return Sample(at_s, memory, descriptors, threads, tasks)


def _of(pid: int) -> tuple[float, float, float] | None:
    folder = Path(f"/proc/{pid}")
    try:
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        descriptors = len(os.listdir(folder / "fd"))
    except (OSError, ValueError):
        return None
    rss, shared, threads = (int(status.get(name, "0").split()[0]) for name in ("VmRSS", "RssShmem", "Threads"))
    return (rss - shared) * KIB / MIB, descriptors, threads


async def _tasks(url: str) -> float | None:
    with contextlib.suppress(OSError):
        return total((await asyncio.to_thread(get, url)).decode(), "python_asyncio_tasks")
    return None


def growth(
    samples: Sequence[Sample], limits: Mapping[str, float], *, warmup_s: float, round_s: float, judged: bool
) -> Iterator[Figure]:
    """The growth of each resource after the warm-up. Without `judged` there are no targets."""
    for name, bound in limits.items():
        held = [(one.at_s, value) for one in samples if (value := getattr(one, name)) is not None]
        points = [point for point in medians(held, round_s) if point[0] >= warmup_s]
        if points:
            label, note = name.removesuffix("_mb"), f"{points[0][1]:.1f} at first, {points[-1][1]:.1f} at last"
            unit = "MB a minute" if label != name else "a minute"
            yield Figure(label, per_minute(points), unit, bound if judged else None, at_least=False, note=note)


def medians(points: Sequence[tuple[float, float]], round_s: float) -> list[tuple[float, float]]:
    """(middle of the round in seconds, median) for each complete round."""
    rounds: dict[int, list[float]] = {}
    for at_s, value in points:
        rounds.setdefault(int(at_s // round_s), []).append(value)
    last = int(points[-1][0] // round_s) if points else 0
    return [((number + 0.5) * round_s, median(values)) for number, values in rounds.items() if number < last]


def per_minute(points: Sequence[tuple[float, float]]) -> float:
    """The least-squares slope of (seconds, value), per minute; 0 with too few points."""
    times, values = [at_s for at_s, _ in points], [value for _, value in points]
    return S_PER_MINUTE * linear_regression(times, values).slope if len(set(times)) > 1 else 0.0
