"""Announcements, refusals and a list that changes, over a network."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from services.contracts.generate import GenerateRequest, WorkerStatus
from services.core.outcome import Outcome
from services.router.parsing.parsed import Format, ParsedRequest
from services.router.request import InferenceRequest
from services.router.upstreams.call import Attempt, Busy
from services.router.workers.connect import connect
from services.router.workers.fleet import Fleet
from services.router.workers.prober import Prober
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.errors import Refused
from services.runtime.http import Exchange, Handler
from services.runtime.log import Log
from services.runtime.serve import Process
from services.runtime.upstream import UpstreamError
from tests.router.fleetrig import asked
from tests.runtime.rig import serving, until
from tests.virtual import run

STATUS = WorkerStatus("w", "fake", ["m"], 4, 8, 0, 0, False, 20.5, 0.1, 1000, 900)
PARSED = ParsedRequest(Format.ASK, None, None, 9, False, prompt="Hi.")
REQUEST = InferenceRequest("r", "t", deadline=1.0, model="m", max_tokens=9, granted_tokens=9, parsed=PARSED)


def says(body: Any) -> Handler:
    async def answer(exchange: Exchange) -> None:
        await exchange.reply(200, msgspec.json.encode(body))

    return answer


def weir_at(process: Process, name: str = "w") -> Worker:
    return connect(WorkerSpec(name=name, kind="weir", url=f"http://127.0.0.1:{process.bound_port}"), 8)


def test_a_worker_is_what_it_announces() -> None:
    async def main() -> None:
        async with serving({("GET", "/status"): says(STATUS)}) as process:
            worker = weir_at(process)
            assert worker.learn(await worker.upstream.probe())
            assert (worker.slots, worker.lookahead, worker.models, worker.kv_tokens) == (4, 1, ("m",), 1000)
            assert (worker.step_ms, worker.prefill_ms_per_token) == (20.5, 0.1)
            worker.upstream.close()

    run(main)


@pytest.mark.parametrize(
    "absurd",
    [
        {"slots": 0}, {"slots": -1}, {"slots": 10**9}, {"slots": 2.5}, {"slots": True}, {"kv_tokens": 0},
        {"kv_tokens": "many"}, {"models": [""]}, {"models": ["x" * 257]}, {"models": ["m"] * 257}, {"step_ms": -1},
    ],
    ids=str,
)  # fmt: skip
def test_an_absurd_announcement_is_not_believed(absurd: dict[str, Any]) -> None:
    async def main() -> None:
        async with serving({("GET", "/status"): says({**msgspec.to_builtins(STATUS), **absurd})}) as process:
            worker = weir_at(process)
            with pytest.raises(UpstreamError, match="/status has an unexpected format"):
                await worker.upstream.probe()
            worker.upstream.close()

    run(main)


def test_an_announcement_of_an_older_worker_is_understood() -> None:
    old = {key: value for key, value in msgspec.to_builtins(STATUS).items() if not key.startswith(("kv", "prefill"))}

    async def main() -> None:
        async with serving({("GET", "/status"): says({**old, "new_field": 1})}) as process:
            worker = weir_at(process)
            seen = await worker.upstream.probe()
            assert (seen.slots, seen.kv_tokens, seen.prefill_ms_per_token) == (4, None, 0.0)
            worker.upstream.close()

    run(main)


@pytest.mark.parametrize(
    ("outcome", "status", "meaning"),
    [
        (Outcome.YIELD, 429, Busy),
        (Outcome.DRAINING, 503, Busy),
        (Outcome.DEADLINE_EXPIRED, 429, Refused),
        (Outcome.DEADLINE_EXCEEDED, 504, Refused),
    ],
)
def test_a_workers_refusal_is_told_apart_from_the_end_of_the_requests_own_time(
    outcome: Outcome, status: int, meaning: type
) -> None:
    async def refuse(exchange: Exchange) -> None:
        raise Refused(outcome, "no", predicted_wait_ms=70)

    async def main() -> None:
        async with serving({("POST", "/generate"): refuse}) as process:
            worker = weir_at(process)
            with pytest.raises(meaning) as raised:
                await worker.upstream.whole(REQUEST, Attempt("a", 1000))
            if isinstance(raised.value, Refused):
                assert raised.value.outcome is outcome
            if isinstance(raised.value, Busy):
                assert raised.value.draining == (outcome is Outcome.DRAINING)
            worker.upstream.close()

    run(main)


def test_the_time_that_remains_goes_on_even_where_it_is_long() -> None:
    seen: list[float] = []

    async def generate(exchange: Exchange) -> None:
        seen.append(msgspec.json.decode(exchange.body, type=GenerateRequest).deadline_ms)
        raise Refused(Outcome.YIELD, "no")

    async def main() -> None:
        async with serving({("POST", "/generate"): generate}) as process:
            worker = weir_at(process)
            for remaining_ms in (0.25, 1234.5, 600_000):
                with pytest.raises(Busy):
                    await worker.upstream.whole(REQUEST, Attempt("a", remaining_ms))
            worker.upstream.close()

    run(main)
    assert seen == [0.25, 1234.5, 600_000]


def test_a_reload_while_requests_run_cuts_none_of_them_and_leaves_no_connection() -> None:
    gate = asyncio.Event()
    keys: list[bytes | None] = []

    async def chat(exchange: Exchange) -> None:
        keys.append(exchange.header(b"authorization"))
        await gate.wait()
        whole = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]}
        await exchange.reply(200, json.dumps(whole).encode())

    async def main() -> None:
        gate.clear()
        routes: dict[tuple[str, str], Handler] = {("POST", "/v1/chat/completions"): chat}
        async with serving(routes) as process:
            url = f"http://127.0.0.1:{process.bound_port}/v1"
            make = partial(connect, max_inflight=8)

            def listed(name: str, **said: Any) -> WorkerSpec:
                return WorkerSpec(name=name, **{"kind": "openai", "url": url, "slots": 2, "models": ["m"], **said})

            fleet = Fleet([make(listed("stays")), make(listed("goes"))], Random(1))
            prober = Prober(fleet, 0.05, Log("test", level="ERROR"), Random(1))
            await prober.look_at_all()
            prober.start()
            tasks = []
            olds = [(worker, worker.upstream) for worker in fleet.workers]
            for worker, upstream in olds:
                turn = asked()
                assert fleet.take(turn, excluding=next(other for other, _ in olds if other is not worker)) is worker
                tasks.append((worker, turn, asyncio.create_task(upstream.whole(REQUEST, Attempt("a", 1000)))))
            await until(lambda: len(keys) == 2, "both requests there")
            prober.reload([listed("stays", slots=1), listed("joins")], make)
            assert [one.name for one in fleet.workers] == ["stays", "joins"]
            assert fleet.workers[0].upstream is not olds[0][1]
            await until(lambda: fleet.slots("m") == 3, "the newcomer known")
            gate.set()
            for worker, turn, task in tasks:
                assert (await task).text == "Hi."
                fleet.give_back(worker, turn, served=True)
            assert fleet.leaving == []
            for _, upstream in olds:
                assert "0 in use, 0 idle" in repr(upstream._pool)  # type: ignore[attr-defined]
            await prober.stop()

    run(main)
