"""Measures the memory that a large request takes in the router, and what that is in the worst case.

For each kind of body: its bytes, what is held while it waits (the body and what is parsed of it), and the most at one
time while it is parsed and encoded for a worker. The edge counts large bodies until they are answered, so their worst
case is MAX_INCOMING_BYTES times the bytes held for each byte; of smaller ones it is MAX_INFLIGHT and MAX_QUEUE_SIZE
requests. Allocations are counted by tracemalloc, so the figures are the same on every machine with the same Python.

Run: python -m loadtests.bench.bodies
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from services.router.config import RouterSettings
from services.router.parsing.parsers import Parser, parse_chat, parse_completion
from services.router.request import InferenceRequest
from services.router.upstreams.openai import request_body
from services.runtime.connection import LARGE_BODY_BYTES

MIB = 1_048_576
ROOM = 1024
"""Bytes of a body beside its long text."""


class Held(NamedTuple):
    """Bytes: of the body, held while the request waits, and the most at one time."""

    body: int
    waiting: int
    peak: int


def chat_of(content: str) -> bytes:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def picture(size: int) -> bytes:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
    return json.dumps({"messages": [{"role": "user", "content": [part]}]}, separators=(",", ":")).encode()


def token_ids(count: int) -> bytes:
    ids = ",".join(str(100_000 + number % 50_000) for number in range(count))
    return b'{"prompt":[' + ids.encode() + b"]}"


def objects(count: int) -> bytes:
    return b'{"messages":[{"role":"user","content":"x"}],"of_next_year":[' + b",".join([b'{"":1}'] * count) + b"]}"


def members(count: int) -> bytes:
    pairs = ",".join(f'"{number:x}":{number}' for number in range(1000, 1000 + count))
    return b'{"messages":[{"role":"user","content":"x"}],"of_next_year":{' + pairs.encode() + b"}}"


def bodies(limit: int) -> Iterator[tuple[str, Parser, Callable[[], bytes]]]:
    yield "a text in ASCII", parse_chat, lambda: chat_of("a" * (limit - ROOM))
    yield "a text with one emoji", parse_chat, lambda: chat_of("\U0001f600" + "a" * (limit - ROOM))
    yield "a picture", parse_chat, lambda: picture(limit - ROOM)
    yield "262,000 token ids", parse_completion, lambda: token_ids(262_000)
    yield "16,000 objects", parse_chat, lambda: objects(16_000)
    yield "262,000 members", parse_chat, lambda: members(262_000)


def held(parse: Parser, make: Callable[[], bytes]) -> Held:
    gc.collect()
    tracemalloc.start()
    try:
        body = make()
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0] - len(body)
        parsed = parse(body)
        request = InferenceRequest("r", "t", deadline=1.0, model="m", parsed=parsed, granted_tokens=16)
        gc.collect()
        waiting = tracemalloc.get_traced_memory()[0] - before
        sent = msgspec.json.encode(request_body(request))
        peak = tracemalloc.get_traced_memory()[1] - before
        assert sent
        return Held(len(body), waiting, peak)
    finally:
        tracemalloc.stop()


def main() -> None:
    settings = RouterSettings(_env_file=None)  # type: ignore[call-arg]  # pydantic-settings' own keyword
    budget = settings.max_incoming_bytes
    print(f"MAX_BODY_BYTES {settings.max_body_bytes / MIB:g} MiB, MAX_INCOMING_BYTES {budget / MIB:g} MiB")
    print("| body | size, MiB | held while it waits, MiB | most at one time, MiB | held for a byte | all full, MiB |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, parse, make in bodies(settings.max_body_bytes):
        found = held(parse, make)
        size, waiting, peak = (number / MIB for number in found)
        times = found.waiting / found.body
        small = found.body <= LARGE_BODY_BYTES  # not counted while it is answered
        full = waiting * (settings.max_inflight + settings.max_queue_size) if small else times * budget / MIB
        print(f"| {name} | {size:.1f} | {waiting:.1f} | {peak:.1f} | {times:.1f} | {full:,.0f} |")


if __name__ == "__main__":
    main()
