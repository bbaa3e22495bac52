"""Who stands before the workers: Weir, Weir with mechanisms switched off, or HAProxy. The workers stay the same.

The switches are the operator's (`POST /admin/policy`, on the router's metrics listener), so both of the simpler
policies are the same process with the same costs. HAProxy is another process before the same workers, which its
clients ask directly.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from urllib.parse import urlsplit

from loadtests.cluster.processes import get
from loadtests.cluster.stand import Stand
from loadtests.internal import headers
from loadtests.runs.peers.gateways import GATEWAYS, Deadlines, haproxy

MECHANISMS = ("admission", "fairness", "cancellation")
AT_REST_WITHIN_S = 10.0
LOOK_EVERY_S = 0.2
WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to stand before the workers. `off`: what is switched off; None: the router is not in the way."""

    name: str
    title: str
    about: str
    off: tuple[str, ...] | None

    @property
    def route(self) -> str:
        """HAProxy's clients speak to the workers, in the workers' own words."""
        return "generate" if self.off is None else "completions"


WEIR = Policy("weir", "Weir", "the router with its default settings", ())
NO_ADMISSION = Policy(
    "no_admission",
    "no admission",
    "the same without admission: nobody is refused for a deadline; fair lines, and what nobody waits for is cancelled",
    ("admission",),
)
FIFO = Policy(
    "fifo",
    "bounded FIFO",
    "the same with all three mechanisms off: one line of at most 256, first in, first out",
    MECHANISMS,
)
HAPROXY = Policy(
    "haproxy",
    "HAProxy",
    "before the same workers, in Weir's place: `maxconn` is a worker's slots, and `timeout queue` is tuned for each "
    "scenario by somebody who knows its tightest deadline and the service time",
    None,
)
_HAPROXY = next(gateway for gateway in GATEWAYS if gateway.name == "HAProxy")
POLICIES = (WEIR, NO_ADMISSION, FIFO, HAPROXY)


def available() -> tuple[Policy, ...]:
    """Those that this machine can play."""
    return POLICIES if haproxy() else tuple(policy for policy in POLICIES if policy is not HAPROXY)


@asynccontextmanager
async def in_force(policy: Policy, stand: Stand, deadlines: Deadlines) -> AsyncIterator[Stand]:
    """What clients ask, while this policy is in force; afterwards the router is whole again."""
    await at_rest(stand)
    if policy.off is None:
        before_workers = replace(stand, router=None)
        await _HAPROXY.start(before_workers, (), deadlines)
        try:
            yield before_workers
        finally:
            if before_workers.router is not None:
                await before_workers.router.process.stop()
        return
    await asyncio.to_thread(switch, stand, policy.off)
    try:
        yield stand
    finally:
        await asyncio.to_thread(switch, stand, ())


def switch(stand: Stand, off: Sequence[str]) -> None:
    """These mechanisms off, the others on. Raises OSError where the router does not do it."""
    body = json.dumps({name: name not in off for name in MECHANISMS}).encode()
    request = urllib.request.Request(
        f"{admin_url(stand)}/admin/policy", body, {"content-type": "application/json", **headers()}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        answer.read()


async def at_rest(stand: Stand) -> None:
    """Until the router has nothing in line and nothing at workers, so that no run begins in another's backlog."""
    end = monotonic() + AT_REST_WITHIN_S
    while monotonic() < end:
        state = json.loads(await asyncio.to_thread(get, f"{admin_url(stand)}/admin/state"))
        if not state["inflight"]["now"] and not state["in_line"]:
            return
        await asyncio.sleep(LOOK_EVERY_S)


def admin_url(stand: Stand) -> str:
    """The router's metrics listener, which carries the operator's routes."""
    if stand.router is None:
        raise RuntimeError("this stand has no router")
    parts = urlsplit(stand.router.metrics_url)
    return f"{parts.scheme}://{parts.netloc}"
