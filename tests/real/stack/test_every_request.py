"""The books of a stack under everything that happens to a request: metrics, log and clients agree on every one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import httpx2

from tests.real.stack.stand import Part, Stand, chat, soon
from tests.real.stack.test_faults import ENDLESS, held, run


def test_every_request_ends_exactly_once_and_as_its_client_was_told(stand: Stand) -> None:
    """Answers and streams, refusals, deadlines, mistakes, clients that leave, and a worker that is killed among them:
    metrics, log and clients agree on every one."""
    ledger: dict[str, str] = {}  # by request id, what its client saw

    async def main(router: Part) -> None:
        async with stand.client(router) as client, stand.client(router) as leavers:

            async def ask(kind: str, number: int) -> None:
                """Again and again while there is no place; each attempt is a request of its own."""
                for attempt in range(200):
                    id = f"{kind}-{number}-{attempt}"
                    ledger[id] = await seen(client, kind, id)
                    if ledger[id] != "yield":
                        return
                    await asyncio.sleep(0.05)
                raise AssertionError(f"{kind} was refused 200 times")

            silent = [asyncio.create_task(chat(leavers, ENDLESS, headers=named(f"silent-{n}"))) for n in range(2)]
            await soon(lambda: router.metric("weir_inflight") == 2, "two run that will leave without a word")
            kinds = [kind for kind in KINDS for _ in range(8)]
            asking = asyncio.gather(*(ask(kind, number) for number, kind in enumerate(kinds)))
            await soon(lambda: router.metric("weir_served_cost_total") > 0, "some are served")
            stand.workers[0].kill()
            await asking
            for number, task in enumerate(silent):
                task.cancel()
                ledger[f"silent-{number}"] = "client_gone"
            await asyncio.gather(*silent, return_exceptions=True)
            await soon(lambda: router.metric("weir_inflight") == 0, "every place is given back")
        expected = Counter(ledger.values())
        assert router.metrics("weir_requests_total", "outcome") == expected
        assert expected.keys() >= {"served", "yield", "client_gone", "invalid_request", "model_not_found"}
        assert router.metrics("weir_request_seconds_count", "outcome") == expected
        await soon(lambda: len(logged(router)) == len(ledger), "every request has its line in the log")
        assert dict(logged(router)) == ledger
        await soon(lambda: not held(router), "every worker's place is given back")

    with stand.another_router("ledger", MAX_INFLIGHT="6") as router:
        run(lambda: main(router))


KINDS = (
    "plain", "stream", "question", "question_stream", "impatient", "late", "late_stream", "leaver", "mistake",
    "stranger",
)  # fmt: skip


def named(id: str) -> dict[str, str]:
    return {"x-request-id": id}


async def seen(client: httpx2.AsyncClient, kind: str, id: str) -> str:
    """One request of a kind, and its outcome as the client sees it."""
    headers = named(id)
    if kind == "leaver":
        told = await chat(client, ENDLESS, stream=True, leave=True, headers=headers)
        return told.code or "client_gone"
    if kind == "mistake":
        told = await chat(client, temperature=9, headers=headers)
    elif kind == "stranger":
        told = await chat(client, model="gpt-none", headers=headers)
    elif kind.startswith("late"):
        hurried = {**headers, "x-weir-deadline-ms": "100"}
        told = await chat(client, ENDLESS, stream=kind == "late_stream", headers=hurried)
    elif kind.startswith("question"):
        return await asked(client, headers, stream=kind == "question_stream")
    elif kind == "impatient":
        told = await chat(client, headers={**headers, "prefer": "wait=0"})
    else:
        told = await chat(client, stream=kind == "stream", headers=headers)
    return "served" if told.served else str(told.code)


async def asked(client: httpx2.AsyncClient, headers: dict[str, str], *, stream: bool) -> str:
    """One question, and its outcome as the client sees it."""
    body = {"query": "When does the lock-keeper open the gate?", "max_tokens": 20, "stream": stream}
    answer = await client.post("/ask", json=body, headers=headers)
    if answer.status_code != 200:
        return str(answer.json()["error"]["code"])
    if stream and not answer.text.endswith("data: [DONE]\n\n"):
        return str(json.loads(answer.text.rpartition("event: error\ndata: ")[2])["error"]["code"])
    return "served"


def logged(router: Part) -> list[tuple[str, str]]:
    """Each request's id and outcome, as often as it stands in the router's log."""
    lines = [record for record in router.records() if record["event"] == "request"]
    return [(line["id"], line["outcome"]) for line in lines if line["path"] in ("/v1/chat/completions", "/ask")]
