"""What an attempt costs and whom it blames, over real upstreams and pools, in virtual time and without sockets."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from services.core.outcome import Outcome
from services.core.retries import RetryBudget
from services.router.deciding.dispatcher import Dispatcher
from services.router.parsing.parsed import Format, ParsedRequest
from services.router.serving.attempts import Attempts
from services.router.telemetry.metrics import RouterMetrics
from services.router.upstreams.openai import OpenAIUpstream
from services.router.workers.prober import LACKING_LINE_S, Prober
from services.router.workers.worker import Worker
from services.runtime.errors import BadInput, Refused, UpstreamFailed
from services.runtime.log import Log
from services.runtime.telemetry import new_registry
from tests.router.fleetrig import spec
from tests.router.house import House, turn
from tests.runtime.wires import Wire, turns, wired
from tests.virtual import run

KEY = "sk-upstream-0123456789"
ANSWER = json.dumps(
    {
        "choices": [{"index": 0, "message": {"content": "A weir."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
).encode()


def said(status: int, body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), lines, body)


def failure(status: int, message: str, **more: Any) -> bytes:
    return said(status, json.dumps({"error": {"message": message, **more}}).encode())


@dataclass
class Stand:
    """Attempts over workers that are wires. `budget` is how many retries there are."""

    house: House
    attempts: Attempts
    prober: Prober
    wires: list[Wire]
    told: io.BytesIO
    registry: Any

    async def ask(self, **fields: Any) -> Any:
        """One request with a place, sent until it has an answer or a refusal, and released."""
        made = turn(within_s=100.0)
        made.parsed = ParsedRequest(Format.CHAT, None, "m", 9, stream=False, body={"messages": [], **fields})
        assert self.house.admit(made) is None
        await self.house.dispatcher.wait_for_slot(made)
        outcome = Outcome.SERVED
        try:
            return await self.attempts.send(made)
        except (Refused, BadInput) as refusal:
            outcome = refusal.outcome
            raise
        finally:
            self.house.dispatcher.release(asyncio.get_running_loop().time(), made, outcome)

    @property
    def received(self) -> int:
        return sum(wire.requests for wire in self.wires)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told.getvalue().splitlines()]


@asynccontextmanager
async def standing(
    workers: int = 2, share: float = 1.0, refuse: Callable[[], OSError | None] = lambda: None
) -> AsyncIterator[Stand]:
    async with wired(refuse) as (pool, wires):
        made = []
        for number in range(workers):
            worker = Worker(spec(f"w{number}"), OpenAIUpstream(pool, ("m",), KEY), max_limit=8)
            worker.health.answered(0.0, needed=True)
            made.append(worker)
        house, told = House(made), io.BytesIO()
        log = Log("test", stream=told)
        prober = Prober(house.fleet, 1.0, log, Random(1))
        registry = new_registry()
        metrics = RouterMetrics(registry)
        budget = RetryBudget(share)
        dispatcher: Dispatcher = house.dispatcher
        yield Stand(house, Attempts(dispatcher, prober, budget, metrics), prober, wires, told, registry)
        log.close()


async def serve(stand: Stand, play: Callable[[Wire], None], rounds: int = 50) -> None:
    """Answer every request as it comes."""
    seen: dict[Wire, int] = {}
    for _ in range(rounds):
        await turns(3)
        for wire in list(stand.wires):
            if not wire.closed and wire.requests > seen.get(wire, 0):
                seen[wire] = wire.requests
                play(wire)


def close(wire: Wire) -> None:
    wire.end()


# ---- who receives it, and how often


@pytest.mark.parametrize("used", [False, True], ids=["new connections", "reused connections"])
def test_a_request_that_makes_its_server_close_is_received_twice_and_no_more(used: bool) -> None:
    async def main() -> None:
        async with standing(workers=4) as stand:
            if used:
                serving = asyncio.create_task(serve(stand, lambda wire: wire.feed(said(200, ANSWER))))
                await asyncio.gather(*(stand.ask() for _ in range(4)))
                serving.cancel()
            before = stand.received
            closing = asyncio.create_task(serve(stand, close))
            with pytest.raises(Refused) as poison:
                await stand.ask()
            assert poison.value.outcome is Outcome.POISON
            assert stand.received - before == 2
            assert retries(stand) == {"failed": 1}
            closing.cancel()

    run(main())


def test_without_a_retry_left_it_is_received_once() -> None:
    async def main() -> None:
        async with standing(workers=4, share=0.0) as stand:
            budget = stand.attempts._budget
            while budget.try_retry(0.0):
                pass
            closing = asyncio.create_task(serve(stand, close))
            with pytest.raises(UpstreamFailed):
                await stand.ask()
            assert (stand.received, retries(stand)) == (1, {})
            closing.cancel()

    run(main())


def retries(stand: Stand) -> dict[str, int]:
    """What the metric has counted, by reason."""
    counted = {
        reason: stand.registry.get_sample_value("weir_retries_total", {"reason": reason})
        for reason in ("failed", "refused", "unreachable")
    }
    return {reason: int(count) for reason, count in counted.items() if count}


# ---- a lack of descriptors is the router's own


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_router_without_descriptors_refuses_and_blames_no_worker(number: int) -> None:
    async def main() -> None:
        async with standing(refuse=lambda: OSError(number, os.strerror(number))) as stand:
            for _ in range(20):
                with pytest.raises(Refused) as refused:
                    await stand.ask()
                assert (refused.value.status, refused.value.details.reason) == (503, "no_connection")
                assert refused.value.details.retry_hint_ms is not None
                for worker in stand.house.workers:
                    await stand.prober.probe(worker)
            for worker in stand.house.workers:
                assert (worker.live, worker.resting, worker.health.failures) == (True, False, 0)
                assert (worker.health.ejections, worker.health.missed_probes) == (0, 0)
            assert retries(stand) == {}
            assert len([line for line in stand.lines if line["level"] == "WARNING"]) == 1

    run(main())


def test_a_lack_of_descriptors_is_logged_once_a_second_at_most() -> None:
    async def main() -> None:
        async with standing(refuse=lambda: OSError(errno.EMFILE, "Too many open files")) as stand:
            for _ in range(100):
                await stand.prober.probe(stand.house.workers[0])
                await asyncio.sleep(0.1)
            assert len(stand.lines) <= 10 / LACKING_LINE_S + 1
            assert all("Too many open files" in line["why"] for line in stand.lines)

    run(main())


# ---- what a client is told, and what the log is

HELD_BACK = {
    "a key that is refused": (failure(401, "Incorrect API key provided: sk-proj-****Ab3d"), "sk-proj"),
    "a wrong path": (failure(404, "http://10.0.0.5/v2 is no route of acme-cloud"), "10.0.0.5"),
    "a forbidden model": (failure(403, "project acme-7 may not use it"), "acme-7"),
    "a broken server": (failure(500, "node gpu-12.internal: CUDA out of memory"), "gpu-12"),
    "a gateway": (said(502, b"<html>nginx at 10.1.2.3</html>"), "nginx"),
    "no JSON": (said(200, b"Bad gateway from envoy-3"), "envoy-3"),
    "an error under 200": (failure(200, "quota of org-77 exceeded", code=402), "org-77"),
}


@pytest.mark.parametrize(("answer", "secret"), HELD_BACK.values(), ids=HELD_BACK.keys())
def test_a_workers_words_are_for_the_log_and_a_fixed_sentence_for_the_client(answer: bytes, secret: str) -> None:
    async def main() -> None:
        async with standing(workers=3) as stand:
            serving = asyncio.create_task(serve(stand, lambda wire: wire.feed(answer)))
            with pytest.raises((UpstreamFailed, BadInput)) as told:
                await stand.ask()
            assert secret not in told.value.message
            assert "worker" in told.value.message
            if not answer.startswith((b"HTTP/1.1 502", b"HTTP/1.1 200 X\r\ncontent-length: 24")):
                assert secret in told.value.why
            serving.cancel()

    run(main())


def test_an_address_that_refuses_is_for_the_log() -> None:
    async def main() -> None:
        async with standing(refuse=lambda: ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) as stand:
            with pytest.raises(Refused) as told:
                await stand.ask()
            assert "worker.test" not in told.value.message

    run(main())


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_a_worker_says_of_the_request_itself_reaches_its_client_in_bounds(status: int) -> None:
    message = "This model's context length is 2048 tokens.\r\n\x1b[2J" + f" Key {KEY}. " + "x" * 10_000
    answer = failure(status, message, param="messages", code="context_length_exceeded")

    async def main() -> None:
        async with standing() as stand:
            serving = asyncio.create_task(serve(stand, lambda wire: wire.feed(answer)))
            with pytest.raises(BadInput) as told:
                await stand.ask()
            assert told.value.message.startswith("This model's context length is 2048 tokens.")
            assert (told.value.status, told.value.param) == (status, "messages")
            assert told.value.code == "context_length_exceeded"
            assert told.value.message.isprintable()
            assert len(told.value.message) <= 500
            assert KEY not in told.value.message
            assert stand.received == 1
            serving.cancel()

    run(main())


def test_a_code_or_a_param_that_is_none_is_not_passed_on() -> None:
    answer = failure(400, "no", param="a b\r\nc", code="x" * 100)

    async def main() -> None:
        async with standing() as stand:
            serving = asyncio.create_task(serve(stand, lambda wire: wire.feed(answer)))
            with pytest.raises(BadInput) as told:
                await stand.ask()
            assert (told.value.param, told.value.code) == (None, "invalid_request")
            serving.cancel()

    run(main())
