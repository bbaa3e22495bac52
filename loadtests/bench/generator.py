"""The limits of the open-loop generator on one core, which must not limit a load test.

The figures are the requests sent in a second of a core's processor time, before a stub on the other core, and the share
sent more than 20 ms late, which invalidates a run.
"""

from __future__ import annotations

import time
import tomllib

from loadtests.bench.stub import stub
from loadtests.cluster.usage import cores, pinned
from loadtests.load.client import Client
from loadtests.load.figures import Figures, figures
from loadtests.load.planfile import parse
from loadtests.report.figure import Figure, at_least, at_most

PER_S = 3000
TARGET_PER_S = 3000
MAX_LATE = 0.05  # share of late requests above which a run is marked invalid
WARM_S = 1.0
ALIKE = f'name = "alike"\nper_s = {PER_S}'
DRAWN = f"""\
name = "drawn"
per_s = {PER_S}
clients = 100
skew = 1.2
arrivals = "gamma"
cv = 2
prompt_tokens = {{ kind = "log_normal", median = 200, p95 = 1036, max = 2000 }}
answer_tokens = {{ kind = "exponential", mean = 87, max = 512 }}"""
PLAN = """\
seconds = {seconds:g}
warmup_s = {warm_s:g}
cooldown_s = 0
route = "chat"
[[tenants]]
{tenant}
"""


async def measure(seconds: float) -> list[Figure]:
    own_core, _ = cores()
    found = []
    async with stub() as port:
        with pinned(own_core):
            for name, tenant in (("requests alike", ALIKE), ("100 clients, lengths drawn", DRAWN)):
                plan = parse(tomllib.loads(PLAN.format(seconds=WARM_S + seconds, warm_s=WARM_S, tenant=tenant)))
                client, began_s = Client(plan, f"http://127.0.0.1:{port}"), time.process_time()
                ledger = await client.run()
                found += sent(name, figures(plan, ledger), plan.seconds, time.process_time() - began_s)
    return found


def sent(name: str, found: Figures, seconds: float, cpu_s: float) -> list[Figure]:
    """The figures of one plan: requests a second of a core, and lateness."""
    tries, late = sum(found.tries.values()), found.generator_ms
    failed = tries - found.tries.get("served_on_time", 0) - found.tries.get("served_late", 0)
    spent = f"{tries:,} in {seconds:g} s, {1e6 * cpu_s / tries:.0f} us each, {failed} not served"
    how_late = f"p50 {late.p50:.1f} ms, p99 {late.p99:.1f} ms, most {late.max:.0f} ms"
    return [
        at_least(f"{name}: sent per second of a core", tries / cpu_s, TARGET_PER_S, "requests/s", spent),
        at_most(f"{name}: later than 20 ms, at {PER_S:,}/s", found.generator_late, MAX_LATE, "%", how_late),
    ]
