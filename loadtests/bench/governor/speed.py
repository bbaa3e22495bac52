"""How much one core carries: the governor has one, its client another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator

from loadtests.bench.governor.subject import Subject, governor
from loadtests.bench.machine import cores
from loadtests.report.figure import Figure, median

WANTED = (
    ("pings", "pings, one at a time", "pings/s", 10_000),
    ("pipelined", "pings, pipelined", "pings/s", 30_000),
    ("uploads", "1 kB uploads, two round trips, one connection", "uploads/s", 4_000),
    ("connections", "1 kB uploads, a new connection each", "uploads/s", None),
)


async def measure(seconds: float, rounds: int) -> list[Figure]:
    own, others = cores()
    async with governor(pin=own, cap=4) as subject, _bare(own) as bare:
        runs = []
        for _ in range(rounds):
            figures = await _round(subject, others, seconds)
            ran = await _ran("pings", bare, seconds, others)
            note = "a protocol that looks at nothing and answers with a fixed line: what this machine's sockets allow"
            name = "pings, one at a time, without a governor"
            runs.append([*figures, Figure(name, ran["per_s"], "pings/s", note=note)])
    return median(runs)


@contextlib.asynccontextmanager
async def _bare(pin: set[int]) -> AsyncIterator[int]:
    """The yardstick's port."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests.bench.governor.bare",
        stdout=asyncio.subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, pin),
    )  # fmt: skip
    assert child.stdout is not None
    try:
        yield int(await child.stdout.readline())
    finally:
        child.kill()
        await child.communicate()


async def _round(subject: Subject, client_cores: set[int], seconds: float) -> list[Figure]:
    figures = []
    for load, name, unit, target in WANTED:
        before_s = subject.cpu_s
        ran = await _ran(load, subject.port, seconds, client_cores)
        server_us = (subject.cpu_s - before_s) / ran["all"] * 1e6
        note = f"{server_us:.0f} us of the governor's processor time each; client busy {ran['busy']:.0%}"
        figures.append(Figure(name, ran["per_s"], unit, target, note=note))
    return figures


async def _ran(load: str, port: int, seconds: float, pin: set[int]) -> dict[str, float]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadtests.bench.governor.client", load, str(port), f"{seconds:g}",
        stdout=asyncio.subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, pin),
    )  # fmt: skip
    out, _ = await child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"the client of {load} failed")
    told = json.loads(out)
    per_s = told["replies"] / told["seconds"]
    everything = told["replies"] * (1 + told["warm_up_s"] / told["seconds"])
    return {"per_s": per_s, "all": everything, "busy": told["cpu_s"] / told["seconds"]}
