"""Answers per second that the workers announce, independent of their current load.

An engine step serves every slot once, and a prompt token adds to its step. So one answer of n tokens after a prompt of
p costs n * step / slots + p * prefill of its worker. If a worker does not announce all three, set STORM_CAPACITY_RPS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loadtests.storm.watching import page_of
from services.contracts.generate import WorkerStatus

WITHIN_S = 2.0
MAX_BYTES = 65_536
_status = msgspec.json.Decoder(WorkerStatus).decode


class NoCapacity(Exception):
    """No worker announces its capacity; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All workers together. `slots` is 0 if unknown."""

    per_s: float
    slots: int = 0


async def announced(urls: Sequence[str], tokens: tuple[float, int], token: bytes = b"") -> Capacity:
    """The announced capacity for (prompt, answer) tokens. Raises NoCapacity."""
    statuses = await asyncio.gather(*(_ask(url, token) for url in urls))
    workers = [status for status in statuses if status is not None and not status.draining]
    per_s = sum(answers_per_s(status, *tokens) for status in workers)
    if per_s <= 0:
        raise NoCapacity("no worker announces how fast it is: set WORKERS to their addresses, or STORM_CAPACITY_RPS")
    return Capacity(per_s, sum(status.slots for status in workers))


def answers_per_s(status: WorkerStatus, prompt_tokens: float, answer_tokens: int) -> float:
    """One worker's capacity; 0 if it announces no step time."""
    step_ms = status.full_step_ms or status.step_ms
    answer_ms = answer_tokens * step_ms / status.slots + prompt_tokens * status.prefill_ms_per_token
    return 1000 / answer_ms if step_ms > 0 else 0.0


async def _ask(url: str, token: bytes) -> WorkerStatus | None:
    body = await page_of(url, b"/status", within_s=WITHIN_S, max_bytes=MAX_BYTES, token=token)
    try:
        return None if body is None else _status(body)
    except msgspec.MsgspecError:
        return None
