"""Where the router's time goes: py-spy samples of a saturated router, summed by purpose.

A sample counts for the innermost frame that is not a library's helper: `json` called by `strictjson` is parsing. py-spy
needs the permission to trace processes (root, or kernel.yama.ptrace_scope=0).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from loadtests.bench.stand import CONNECTIONS, FULL, HELD, HOLD_S, Router, all_different, chat, standing
from loadtests.load.closed import closed_loop, hold
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Result

AREAS = {
    "runtime/write_coalescer.py": "writes (system calls)",
    "runtime/keepalive.py": "HTTP to the worker",
    "router/upstreams/": "HTTP to the worker",
    "runtime/guard.py": "HTTP from the client",
    "runtime/connection.py": "HTTP from the client",
    "runtime/exchange.py": "HTTP from the client",
    "runtime/framing.py": "HTTP from the client",
    "runtime/http.py": "HTTP from the client",
    "runtime/strictjson.py": "parsing and checking",
    "router/parsing/parsers.py": "parsing and checking",
    "router/parsing/slo.py": "parsing and checking",
    "router/tenancy/tenants.py": "parsing and checking",
    "router/deciding/sizing.py": "parsing and checking",
    "runtime/instruments.py": "metrics",
    "router/telemetry/metrics.py": "metrics",
    "runtime/log.py": "logs",
    "runtime/errors.py": "the refusal's body",
    "router/deciding/dispatcher.py": "choosing a worker",
    "router/workers/fleet.py": "choosing a worker",
    "router/workers/worker.py": "choosing a worker",
    "services/core/": "deciding: admission, fairness, estimates",
    "router/": "the pipeline itself",
}
ROOT = "services/router/__main__.py"  # at the bottom of every stack of the event loop's thread
SECONDS = 5
SAMPLES_A_SECOND = 500
KINDS = ("answers", "refusals", "streams")
ABOUT = """\
The router, not compiled, is saturated on one core by the loads of [bench.md](bench.md) while py-spy samples its event
loop; it does not see compiled code, which [instructions.md](instructions.md) counts. A system call counts for the line
that makes it. The event loop's own share holds what libuv does without Python: polling, reading, timers.
"""


def area(stack: list[str]) -> str:
    for frame in reversed(stack):
        for part, name in AREAS.items():
            if part in frame and ROOT not in frame:
                return name
    return "event loop and kernel"


def summed(raw: str) -> list[tuple[str, float]]:
    """The shares of py-spy's raw stacks of the event loop's thread, largest first."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, samples = line.rpartition(" ")
        frames = stack.split(";")
        if any(ROOT in frame for frame in frames):
            counts[area(frames)] += int(samples)
    total = sum(counts.values()) or 1
    return [(name, count / total) for name, count in counts.most_common()]


async def measure(say: Say) -> Result:
    shares = {}
    for kind in KINDS:
        say(kind)
        async with standing({**(FULL if kind == "refusals" else {}), "WEIR_CODE": "python"}) as router:
            shares[kind] = summed(await _sampled(router, kind))
    return result(shares)


async def _sampled(router: Router, kind: str) -> str:
    held = await hold(router.port, [chat(router.port, "hang")] * HELD if kind == "refusals" else [], HOLD_S)
    request = all_different(router.port) if kind == "refusals" else chat(router.port, stream=kind == "streams")
    load = asyncio.create_task(closed_loop(router.port, request, CONNECTIONS, SECONDS + 3))
    await asyncio.sleep(1.5)
    with tempfile.NamedTemporaryFile("r") as raw:
        spy = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / "py-spy"), "record", "--pid", str(router.pid),
            "--duration", str(SECONDS), "--rate", str(SAMPLES_A_SECOND), "--format", "raw", "--output", raw.name,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, errors = await spy.communicate()
        await load
        for holder in held:
            holder.transport.close()
        if spy.returncode:
            raise RuntimeError(f"py-spy failed: {errors.decode(errors='replace').strip()[-300:]}")
        return raw.read()


def result(shares: dict[str, list[tuple[str, float]]]) -> Result:
    """The shares as a page; none has a target."""
    names = list(dict.fromkeys(name for rows in shares.values() for name, _ in rows))
    rows = ((name, *(f"{dict(rows).get(name, 0):.0%}" for rows in shares.values())) for name in names)
    figures = {kind: [Figure(name, share, "%") for name, share in rows] for kind, rows in shares.items()}
    return Result("Where the router's time goes", figures, [
        ABOUT, table(("share of the router's time", *shares), rows),
    ])  # fmt: skip
