"""Every request that a client sent ends once: its client, its counters and its line in the log agree, exactly."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
import yaml

from services.contracts.generate import GenerateRequest
from services.runtime.apikey import digest, written
from services.runtime.http import Exchange
from tests.router.rig import FakeWorker, Stand, answer, cut_after, failing, hang, refuse, standing
from tests.runtime.rig import send
from tests.virtual import run

TENANTS = {"calm": {}, "limited": {"rate": {"requests_per_s": 8}}, "small": {"queue": {"requests": 3}}}
SCRIPTS = {
    "serve": answer, "fail": failing(), "refuse": refuse, "die": cut_after(0), "cut": cut_after(2), "hang": hang,
    "leave": hang,
}  # fmt: skip
FATES = {
    "serve": 30, "slow": 10, "once": 8, "fail": 4, "refuse": 6, "die": 3, "cut": 6, "hang": 5, "leave": 12,
    "impatient": 6, "tight": 6, "garbage": 4, "no model": 4,
}  # fmt: skip
NONSENSE = 7
AT_ONCE = 40
"""Requests under way: a slow machine makes the test last, and not everybody be refused."""
Ledger = Counter[tuple[str, str]]
"""How many requests of a tenant ended like this."""


@dataclass
class Plan:
    """What one client does, and what befalls it."""

    id: str
    tenant: str
    fate: str
    route: str
    stream: bool
    starts_s: float

    def body(self) -> bytes:
        text = f"{self.fate} {self.id}"
        prompts: dict[str, dict[str, Any]] = {
            "/ask": {"query": text, "top_k": 1},
            "/v1/completions": {"prompt": text},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]},
        }
        model = {"model": "none"} if self.fate == "no model" else {}
        whole = json.dumps({**prompts[self.route], **model, "max_tokens": 8, "stream": self.stream}).encode()
        return whole[:-3] if self.fate == "garbage" else whole

    def headers(self) -> dict[str, str]:
        headers = {"authorization": f"Bearer key-of-{self.tenant}", "x-request-id": self.id}
        deadline_ms = {"hang": "250", "tight": "2"}.get(self.fate)
        if deadline_ms:
            headers["x-weir-deadline-ms"] = deadline_ms
        if self.fate == "impatient":
            headers["prefer"] = "wait=0"
        return headers


def plans(random: Random, count: int) -> list[Plan]:
    fates = random.choices(list(FATES), list(FATES.values()), k=count)
    return [
        Plan(
            f"r{number}",
            random.choice([*TENANTS, *TENANTS, "nobody"]),
            fate,
            random.choice(["/ask", "/v1/completions", "/v1/chat/completions"]),
            random.random() < 0.5,
            random.random() * 1.5,
        )
        for number, fate in enumerate(fates)
    ]


class Stage:
    """What the workers do with a request: what its prompt says."""

    def __init__(self) -> None:
        self.once: set[str] = set()

    async def __call__(self, exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
        said = request.prompt or (request.messages or [])[-1].content
        fate, id = said.removeprefix("Question: ").split(" ")
        if fate == "slow":
            await asyncio.sleep(0.05)
        if fate == "once" and id not in self.once:
            self.once.add(id)
            fate = "fail"
        await SCRIPTS.get(fate, answer)(exchange, request, worker)


def told(response: httpx2.Response) -> str:
    """The outcome, in the client's eyes."""
    if response.status_code != 200:
        code: str = response.json()["error"]["code"]
        return "invalid_request" if code in ("invalid_api_key", "invalid_json") else code
    if "event: error" in response.text:
        assert "[DONE]" not in response.text
        streamed: str = json.loads(response.text.rpartition("event: error\ndata: ")[2])["error"]["code"]
        return streamed
    assert "text/event-stream" not in response.headers["content-type"] or response.text.endswith("data: [DONE]\n\n")
    return "served"


def has_place(stand: Stand, id: str) -> bool:
    """It waits in the router, or runs at a worker."""
    dispatcher = stand.dispatcher
    held = (turn for worker in dispatcher.fleet.workers for turn in worker.held)
    return any(turn.id == id for turn in (*dispatcher.waiting, *held))


async def live(stand: Stand, client: httpx2.AsyncClient, plan: Plan, gate: asyncio.Semaphore) -> str:
    await asyncio.sleep(plan.starts_s)
    async with gate:
        return await ask(stand, client, plan)


async def ask(stand: Stand, client: httpx2.AsyncClient, plan: Plan) -> str:
    asking = asyncio.create_task(client.post(plan.route, content=plan.body(), headers=plan.headers()))
    while plan.fate == "leave" and not asking.done():
        if has_place(stand, plan.id):
            await asyncio.sleep(0.05)
            if has_place(stand, plan.id):  # still: of one that was turned away meanwhile its client could not know
                asking.cancel()
                break
        await asyncio.sleep(0.01)
    try:
        return told(await asking)
    except asyncio.CancelledError:
        return "client_gone"


async def counted(stand: Stand, metric: str, label: str) -> Ledger:
    """A counter's samples by tenant and the other label."""
    found: Ledger = Counter()
    for labels, value in await stand.samples(metric):
        parts = dict(part.split("=") for part in labels.strip("{}").replace('"', "").split(","))
        found[parts["tenant"], parts[label]] += int(value)
    return +found


def logged(lines: str) -> Ledger:
    records = [json.loads(line) for line in lines.splitlines() if '"event":"request"' in line]
    asked = [record for record in records if record["service"] == "router" and record["method"] == "POST"]
    assert {record["status"] == 499 for record in asked if record["outcome"] == "client_gone"} <= {True}
    return Counter((record["tenant"], record["outcome"]) for record in asked)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_clients_were_told_is_what_was_counted_and_logged(
    seed: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    entries = [{"id": id, "keys": [written(digest(f"key-of-{id}".encode()))], **more} for id, more in TENANTS.items()]
    (tmp_path / "tenants.yaml").write_text(yaml.safe_dump({"tenants": entries}))
    ours: Ledger = Counter()

    async def main() -> None:
        stage = Stage()
        one = standing(
            *(FakeWorker(stage, slots=3) for _ in range(3)),
            tenants_file=tmp_path / "tenants.yaml",
            max_inflight=8,
            log_level="INFO",
            default_ttft_ms=20_000,  # who leaves must not be turned away in the same moment: it could not know which
        )
        async with one as stand:
            limits = httpx2.Limits(max_connections=None)
            async with httpx2.AsyncClient(base_url=stand.client.base_url, timeout=30, limits=limits) as client:
                chosen = plans(Random(seed), 300)
                gate = asyncio.Semaphore(AT_ONCE)
                *endings, _ = await asyncio.gather(
                    *(live(stand, client, plan, gate) for plan in chosen), nonsense(stand, NONSENSE)
                )
            for plan, ending in zip(chosen, endings, strict=True):
                ours[plan.tenant if plan.tenant in TENANTS else "other", ending] += 1
            await stand.all_returned()
            assert await counted(stand, "weir_requests_total", "outcome") == ours
            await self_consistent(stand, ours)
            await histograms_agree(stand, ours)

    run(main)
    assert logged(capfd.readouterr().out) == ours
    assert len({ending for _, ending in ours}) >= 9, "the fates are too kind to prove anything"


async def nonsense(stand: Stand, count: int) -> None:
    """What never becomes a request: no client of the ledger sent it, and it is counted elsewhere."""
    for number in range(count):
        assert (await send(stand.router.bound_port, b"\x16\x03 no request %d\r\n\r\n" % number))[9:12] == b"400"


async def total(stand: Stand, metric: str) -> int:
    return int(sum(value for _, value in await stand.samples(metric)))


async def histograms_agree(stand: Stand, ours: Ledger) -> None:
    """What is timed is what is counted: as often, and by the same labels."""
    served = sum(count for (_, outcome), count in ours.items() if outcome == "served")
    started = await total(stand, "weir_queue_wait_seconds_count")
    assert await counted(stand, "weir_request_seconds_count", "outcome") == ours
    assert await total(stand, "gen_ai_server_request_duration_seconds_count") == served <= started
    assert await total(stand, "weir_predicted_wait_seconds_count") == started <= await admitted(stand)
    first = await total(stand, "weir_time_to_first_token_seconds_count")
    assert await total(stand, "gen_ai_server_time_to_first_token_seconds_count") == first > 0
    assert await total(stand, "weir_http_rejections_total") == NONSENSE


async def admitted(stand: Stand) -> int:
    decisions = await counted(stand, "weir_admission_total", "decision")
    return sum(count for (_, decision), count in decisions.items() if decision in ("admit", "degrade"))


async def self_consistent(stand: Stand, ours: Ledger) -> None:
    """Each request was let in or turned away at the door, and nothing of any is left."""
    decisions = await counted(stand, "weir_admission_total", "decision")
    assert decisions.total() == ours.total()
    for key, refused in decisions.items():
        assert key[1] in ("admit", "degrade") or refused <= ours[key]
    for never_let_in in ("invalid_request", "model_not_found", "tenant_queue_full", "rate_limit_exceeded"):
        for tenant in (*TENANTS, "other"):
            assert decisions[tenant, never_let_in] == ours[tenant, never_let_in]
    dispatcher = stand.dispatcher
    assert not dispatcher.waiting
    assert (
        dispatcher.scheduler.drr.usage.requests
        == dispatcher.scheduler.second_finishes
        == stand.router.drain.inflight
        == 0
    )
    assert not any(of_pool.estimator.busy for of_pool in dispatcher.scheduler.pools.values())
    assert not any(worker.held or worker.work_tokens for worker in dispatcher.fleet.workers)
