"""Real processes: the workers' OpenAI-compatible door, and the gateways that are installed, each before two workers.

Few requests and no times: what is tested is that every gateway is set up so that answers come through it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadtests.cluster.stand import Shape, Stand, stand
from loadtests.load.client import Client
from loadtests.load.ledger import LATE, ON_TIME, Ledger
from loadtests.load.plan import Plan, Size, Step, Tenant
from loadtests.runs.peers import __main__ as command_of_peers
from loadtests.runs.peers.asking import Chats, Reply
from loadtests.runs.peers.cases import CASES
from loadtests.runs.peers.gateways import GATEWAYS, Command, Deadlines, Gateway

WORKER = "loadtests.runs.peers.worker"
PATIENT_MS = 60_000
QUICK = [each for each in GATEWAYS if each.name != "LiteLLM"]  # it takes a dozen seconds of a core to start


def tenant(per_s: float, tokens: int) -> Tenant:
    """Patient enough for a slow machine."""
    return Tenant("a", (Step(0, per_s),), "paced", answer_tokens=Size(tokens), deadline_ms=PATIENT_MS)


async def ask(url: str, who: Tenant, seconds: float, key: str | None = None) -> Ledger:
    plan = Plan(seconds, (who,), warmup_s=0, cooldown_s=0)
    return await Client(plan, url, requests=Chats(url, key), answer=Reply).run()


@pytest.mark.parametrize("gateway", QUICK, ids=lambda gateway: gateway.name)
def test_answers_come_whole_through_the_gateway(gateway: Gateway) -> None:
    if missing := gateway.missing():
        pytest.skip(f"{missing} (make bench-peers installs what pip can)")

    async def through() -> Ledger:
        async with stand(Shape(), ("a",), router=False, worker=WORKER) as made:
            await gateway.start(made, ("a",), Deadlines(PATIENT_MS, PATIENT_MS))
            return await ask(made.url, tenant(20, 5), 1.0, gateway.key)

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


def test_a_gateway_that_ends_is_a_fault_in_its_own_column_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    def build(program: Path, given: Mapping[str, str], folder: Path) -> Command:
        return Command([str(program), "-c", "echo cannot start; exit 3"], "http://127.0.0.1:9/health")

    broken = Gateway("broken", "a gateway", lambda: Path("/bin/sh"), build)
    cell = asyncio.run(command_of_peers._play(CASES[0], broken, "here"))
    assert cell.key == (CASES[0].name, "broken")
    assert "gateway has ended; its last words:\ncannot start" in cell.fault
    assert "could not be played" in capsys.readouterr().out


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


def test_the_command_plays_one_load_and_keeps_it(tmp_path: Path) -> None:
    file, out = tmp_path / "peers.json", tmp_path / "out"
    command = [
        *(sys.executable, "-m", "loadtests.runs.peers", "--only", "under", "--gateway", "Weir"),
        *("--state", str(file), "--out", str(out)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = json.loads(file.read_text())["cells"]
    assert (cell["case"], cell["gateway"], cell["fault"]) == ("under", "Weir", "")
    assert cell["figures"][0]["name"] == "answered on time"
    assert "| 102 requests/s" in (out / "peers.md").read_text()
    assert "| 102 requests/s" in done.stdout
