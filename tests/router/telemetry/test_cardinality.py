"""Whatever a client invents, the router's metrics have no series for it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.runtime.connection import Connection
from services.runtime.shared import Shared
from tests.router.rig import FakeWorker, Stand, hang, standing
from tests.router.tenancy.test_identity import entry, listed
from tests.runtime.rig import Tape, until
from tests.virtual import run

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
INVENTED = 100_000
AT_ONCE = 16
LONG = {"default_slo_ms": 600_000.0, "max_deadline_ms": 600_000.0}
TENANTS = 16
"""MAX_LAB_TENANTS."""


class Counted(Tape):
    """A connection that counts how it was answered, and keeps nothing."""

    def __init__(self, statuses: Counter[int]) -> None:
        super().__init__()
        self.statuses = statuses

    def write(self, data: bytes) -> None:  # type: ignore[override]  # the edge writes bytes
        self.statuses.update(map(int, STATUS.findall(data)))


def asked(method: str, target: str, body: Any = None, **headers: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, **more}


KINDS: tuple[Callable[[int], bytes], ...] = (
    lambda n: asked("POST", "/v1/chat/completions", chat(), x_tenant=f"tenant-{n}", prefer="wait=0"),
    lambda n: asked("POST", "/ask", {"query": "x", "tenant": f"body-{n}"}, prefer="wait=0"),
    lambda n: asked("POST", "/v1/chat/completions", chat(), authorization=f"Bearer key-{n}", prefer="wait=0"),
    lambda n: asked("POST", "/v1/chat/completions", chat(model=f"model-{n}")),
    lambda n: asked("POST", "/v1/chat/completions", chat(user=f"user-{n}"), x_request_id=f"id-{n}", prefer="wait=0"),
    lambda n: asked("POST", "/v1/completions", {"prompt": "x"}, x_weir_class=f"class-{n}", prefer="wait=0"),
    lambda n: asked("POST", "/v1/chat/completions", chat(temperature=100 + n), traceparent=f"00-{n:032x}-{n:016x}-01"),
    lambda n: asked("GET", f"/odd/path/{n}?q={n}"),
    lambda n: asked("DELETE", f"/v1/models/{n}", x_tenant=f"other-{n}"),
    lambda n: asked("POST", f"/cancel/{n}", {"x": n}, user_agent=f"agent-{n}"),
)


async def asks(stand: Stand, numbers: range) -> Counter[int]:
    """One invented identity after another, over connections that each ask some and leave."""
    shared: Shared = stand.router.listener._shared  # type: ignore[attr-defined]
    statuses: Counter[int] = Counter()
    for first in range(numbers.start, numbers.stop, AT_ONCE):
        connection = Connection(shared)
        tape = Counted(statuses)
        connection.connection_made(tape)
        some = range(first, min(first + AT_ONCE, numbers.stop))
        connection.data_received(b"".join(KINDS[n % len(KINDS)](n) for n in some))
        while connection._answering is not None or connection._inbound.queue:
            await asyncio.sleep(0)
        if not first % 100:
            connection.data_received(b"\x00 nonsense %d\r\n\r\n" % first)  # and some do not speak HTTP
        await asyncio.sleep(0)
        connection.connection_lost(None)
    return statuses


async def series(stand: Stand) -> set[str]:
    """Every series on the page, as its name and labels."""
    text = (await stand.metrics.get("/metrics")).text
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def tenants_in(found: set[str]) -> set[str]:
    return {part.split('"')[1] for one in found for part in one.split("{")[-1].split(",") if part.startswith("tenant=")}


async def full(stand: Stand) -> Connection:
    """Somebody takes the only place, so that whoever will not wait is refused."""
    holder = Connection(stand.router.listener._shared)  # type: ignore[attr-defined]
    holder.connection_made(Counted(Counter()))
    holder.data_received(asked("POST", "/v1/chat/completions", chat(), authorization="Bearer key-of-known"))
    await until(lambda: stand.workers[0].running == 1, "one runs")
    return holder


@pytest.mark.parametrize("mode", ["lab", "tenants file"])
def test_a_hundred_thousand_invented_identities_add_no_series(mode: str, tmp_path: Path) -> None:
    tenants_file = listed(tmp_path, entry("known")) if mode == "tenants file" else None
    invented = INVENTED if mode == "lab" else INVENTED // 10

    async def main() -> None:
        chosen: dict[str, Any] = {"max_inflight": 1, "tenants_file": tenants_file, **LONG}
        async with standing(FakeWorker(hang, slots=1), **chosen) as stand:
            holder = await full(stand)
            first = 40 * len(KINDS)  # enough for every tenant that will be told apart, and each kind by all of them
            statuses = await asks(stand, range(first))
            before = await series(stand)
            statuses += await asks(stand, range(first, invented))
            after = await series(stand)
            holder.connection_lost(None)
        assert after - before == before - after == set()
        known = tenants_in(after)
        assert known == {"known", "other"} if tenants_file else len(known) == TENANTS + 1
        assert "other" in known
        assert statuses.total() > invented, "everybody was answered"
        assert statuses.keys() >= ({401, 404, 400} if tenants_file else {429, 404, 400})
        assert len(stand.dispatcher.scheduler.drr.tenants) <= TENANTS + 1, "nor does the scheduler keep them"

    run(main)
