"""What the open-loop generator can do from one core: it must not be what a load test measures.

The generator has one core to itself, and sends to a stub on the other that answers at once. Two figures matter: how
many requests a second of a core's time sends, and how many left later than 20 ms after their time, which is what makes
a run worthless. The first is measured in processor time, so a busy neighbour moves it little.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from loadtests.bench.machine import cores, process, until_ready
from loadtests.report.figure import Figure
from services.cli.ports import free_port

PER_S = 3000
TARGET_PER_S = 3000
MOST_LATE = 5.0  # percent: beyond it a run says of itself that it measured the machine
WARM_S = 1.0
ALIKE = f'name = "alike"\nper_s = {PER_S}'
DRAWN = f"""\
name = "drawn"
per_s = {PER_S}
clients = 100
skew = 1.2
arrivals = "gamma"
cv = 2
prompt_tokens = {{ kind = "log_normal", median = 200, p95 = 1036, most = 2000 }}
answer_tokens = {{ kind = "exponential", mean = 87, most = 512 }}"""
PLAN = """\
seconds = {seconds:g}
warmup_s = {warm_s:g}
cooldown_s = 0
route = "chat"
[[tenants]]
{tenant}
"""


async def measure(seconds: float) -> list[Figure]:
    port = free_port()
    own, others = cores()
    async with process(["-m", "loadtests.bench.stub", str(port)], pin=others):
        await until_ready(f"http://127.0.0.1:{port}/v1/models")
        figures = []
        for name, tenant in (("requests alike", ALIKE), ("100 clients, lengths drawn", DRAWN)):
            figures += _figures(name, await _run(tenant, seconds, port, own))
        return figures


async def _run(tenant: str, seconds: float, port: int, own: set[int]) -> dict[str, Any]:
    """What the generator says of itself, once it has run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        plan, told = Path(folder, "plan.toml"), Path(folder, "told.json")
        await asyncio.to_thread(plan.write_text, PLAN.format(seconds=WARM_S + seconds, warm_s=WARM_S, tenant=tenant))
        args = ["-m", "loadtests.load", str(plan), "--url", f"http://127.0.0.1:{port}", "--json", str(told)]
        async with asyncio.timeout(90 + 4 * seconds), process(args, pin=own):
            while not (found := await asyncio.to_thread(_whole, told)):
                await asyncio.sleep(0.1)
        return found


def _whole(told: Path) -> dict[str, Any]:
    """Empty until the file is there, and whole."""
    try:
        found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _figures(name: str, told: dict[str, Any]) -> list[Figure]:
    found, cpu_s = told["figures"], told["generator_cpu_s"]
    tries, late = sum(found["tries"].values()), found["generator_ms"]
    failed = tries - found["tries"].get("served_on_time", 0) - found["tries"].get("served_late", 0)
    sent = f"{tries:,} in {told['seconds']:g} s, {1e6 * cpu_s / tries:.0f} us each, {failed} not served"
    how_late = f"p50 {late['p50']:.1f} ms, p99 {late['p99']:.1f} ms, most {late['most']:.0f} ms"
    return [
        Figure(f"{name}: sent per second of a core", tries / cpu_s, "requests/s", TARGET_PER_S, note=sent),
        Figure(
            f"{name}: later than 20 ms, at {PER_S:,}/s", 100 * found["generator_late"], "%", MOST_LATE,
            at_least=False, note=how_late,
        ),
    ]  # fmt: skip
