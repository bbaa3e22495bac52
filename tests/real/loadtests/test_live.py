"""Real processes: the workers' OpenAI-compatible door, and the gateways that are installed, each before two workers.

Few requests and no times: what is tested is that every gateway is set up so that answers come through it.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

import pytest

from loadtests.cluster.stand import Shape, Stand, stand
from loadtests.load.client import Client
from loadtests.load.ledger import LATE, ON_TIME, Ledger
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.runs.matrix.asking import Chats, Reply
from loadtests.runs.matrix.playing import WORKER
from loadtests.runs.matrix.subjects import SUBJECTS, Deadlines, Subject
from loadtests.scenarios.distributions import constant

PATIENT_MS = 60_000
QUICK = [each for each in SUBJECTS if each.name != "litellm"]  # it takes a dozen seconds of a core to start


def tenant(per_s: float, tokens: int) -> Tenant:
    """Patient enough for a slow machine."""
    return Tenant("a", (Step(0, per_s),), "paced", answer_tokens=constant(tokens), deadline_ms=PATIENT_MS)


async def ask(url: str, who: Tenant, seconds: float, key: str | None = None) -> Ledger:
    plan = Plan(seconds, (who,), warmup_s=0, cooldown_s=0)
    return await Client(plan, url, requests=Chats(url, key), answer=Reply).run()


@pytest.mark.parametrize("subject", QUICK, ids=lambda subject: subject.name)
def test_answers_come_whole_through_it(subject: Subject) -> None:
    if missing := subject.missing():
        pytest.skip(f"{missing} (make matrix installs what pip can)")

    async def through() -> Ledger:
        patient = Deadlines(PATIENT_MS, PATIENT_MS)
        async with (
            stand(Shape(), ("a",), router=False, worker=WORKER) as made,
            subject.standing(made, ("a",), frozenset(), patient) as asked,
        ):
            return await ask(asked.url, tenant(20, 5), 1.0, subject.key)

    ledger = asyncio.run(through())
    assert len(ledger.rows) >= 19
    assert {row.ending for row in ledger.rows} <= {ON_TIME, LATE}, ledger.tries
    assert {row.tokens for row in ledger.rows} == {5}


def test_a_worker_that_is_full_refuses_through_that_door_without_a_hint() -> None:
    async def flood() -> tuple[Ledger, int]:
        async with stand(Shape(workers=1, step_ms=100), ("a",), router=False, worker=WORKER) as made:
            ledger = await ask(made.workers[0].url, tenant(200, 20), 0.5)
            return ledger, post(made, {"messages": [{"role": "user", "content": "hello"}], "stream": True})[0]

    ledger, status_of_a_stream = asyncio.run(flood())
    endings = Counter(row.ending for row in ledger.rows)
    assert set(endings) == {ON_TIME, "refused:yield"}, endings  # 8 run and 8 wait; 100 were asked within half a second
    assert {refusal.hint_ms for refusal in ledger.refusals} == {None}
    assert status_of_a_stream == 400


def test_what_routers_ask_a_worker_for_is_there() -> None:
    async def look() -> list[Any]:
        async with stand(Shape(workers=1), ("a",), router=False, worker=WORKER) as made:
            asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "ignore_eos": True}
            return [
                *(
                    await asyncio.gather(
                        *(asyncio.to_thread(get, made, path) for path in ("/v1/models", "/server_info"))
                    )
                ),
                (await asyncio.to_thread(post, made, asked))[1],
            ]

    models, about, answer = asyncio.run(look())
    assert [each["id"] for each in models["data"]] == ["weir-sim"]
    assert about["served_model_name"] == "weir-sim"
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["message"]["content"]
    assert answer["object"] == "chat.completion"


def get(made: Stand, path: str) -> Any:
    with urllib.request.urlopen(made.workers[0].url + path, timeout=30) as answer:
        return json.loads(answer.read())


def post(made: Stand, asked: dict[str, Any]) -> tuple[int, Any]:
    url = f"{made.workers[0].url}/v1/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode()), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
