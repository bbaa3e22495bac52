"""A governor as a process of its own, as it is shipped, with the stub for a backend."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.machine import cpu_s


@dataclass(frozen=True, slots=True)
class Subject:
    """Where it is."""

    pid: int
    port: int
    metrics_port: int

    @property
    def rss_mb(self) -> float:
        return self._status_mb("VmRSS")

    @property
    def peak_mb(self) -> float:
        """The most it ever had."""
        return self._status_mb("VmHWM")

    def _status_mb(self, name: str) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    @property
    def cpu_s(self) -> float:
        """Processor seconds, user and system, since it was started."""
        return cpu_s(self.pid)

    def scrape(self) -> dict[str, float]:
        """Every sample of /metrics without labels. It blocks: call it in a thread."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10).read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#" and "{" not in line)
        return {name: float(value) for name, value in pairs}


@contextlib.asynccontextmanager
async def governor(
    *, pin: set[int] | None = None, cap: int = 1, stub_ms: float = 0, **env: str
) -> AsyncIterator[Subject]:
    """Started, and stopped with the block. It must leave with 0."""
    settings = {
        "GOVERNOR_BACKEND": "stub", "GOVERNOR_STUB_MS": f"{stub_ms:g}", "GOVERNOR_MAX_INFLIGHT": str(cap),
        "GOVERNOR_PORT": "0", "METRICS_PORT": "0",
    }  # fmt: skip
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.governor", env={**os.environ, **settings, **env},
        stdout=asyncio.subprocess.PIPE, preexec_fn=(lambda: os.sched_setaffinity(0, pin)) if pin else None,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        async with asyncio.timeout(30):
            told = json.loads(await child.stdout.readline())
        yield Subject(child.pid, told["port"], told["metrics_port"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(20):
                status = await child.wait()
        except TimeoutError:
            child.kill()
            status = await child.wait()
    if status != 0:
        raise RuntimeError(f"the governor left with {status}")


def raise_descriptor_limit() -> int:
    """As many descriptors as this process may have, for itself and what it starts from now on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 1_000_000 if hard == resource.RLIM_INFINITY else hard
