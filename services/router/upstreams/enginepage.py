"""A metrics page of vLLM or SGLang -> what the engine says of itself (decision 076).

Both publish Prometheus' text format at `/metrics`, with hundreds of lines, of which a few matter. Only lines that begin
with a known name are read; each must be whole and well-formed, or counts as unsaid, as does any value that cannot be
true. Linear in the page: one search for each name, and bounded lines. prometheus_client's parser reads every character
of a page in Python, quadratically for many labels or escapes, so a large page would hold up all requests.

Engines that share the requests of one address (data parallelism) each have a line: counts are summed, and of shares the
highest is taken. Lines of the same engine (one for each of its devices) are alternatives, of which the highest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

MAX_LINE_BYTES = 8192
MAX_LINES = 64
"""Lines of one name that are read: more engines than that are not behind one address."""
MAX_COUNT = 2.0**40
MAX_DIGITS = 15
SAMPLE = re.compile(
    rb"[^\s{}]++(?:\{(?P<labels>[^\n]*)\})?[ \t]++(?P<value>[-+.0-9A-Za-z]++)(?:[ \t]++-?\d++)?[ \t\r]*+"
)
LABEL = re.compile(rb'(?:^|,)[ \t]*+([A-Za-z_]\w*+)="([^"\\\n]*+)"')


class EngineReport(msgspec.Struct, frozen=True):
    """What an engine says of itself. None: not said, or not believable."""

    engine: str
    running: int
    """Requests in its batch."""
    waiting: int
    """Requests in its own queue."""
    kv_share: float | None = None
    """Used share of its KV cache."""
    kv_tokens: int | None = None
    """Size of its KV cache."""
    block_tokens: int = 1
    """Tokens of a block of it: a request holds whole blocks."""
    preemptions: int | None = None
    """Requests that it took out of its batch for lack of KV cache, since it started."""
    slots: int | None = None
    """Most requests in its batch."""


class _Names(NamedTuple):
    """Names of one engine's families, newest first. Of `cache`, an information line, the labels are read."""

    running: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    kv_share: tuple[bytes, ...]
    kv_tokens: tuple[bytes, ...]
    preemptions: tuple[bytes, ...]
    slots: tuple[bytes, ...]
    cache: tuple[bytes, ...] = ()


ENGINES = {
    "vllm": _Names(
        running=(b"vllm:num_requests_running",),
        waiting=(b"vllm:num_requests_waiting",),
        kv_share=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        kv_tokens=(),
        preemptions=(b"vllm:num_preemptions_total", b"vllm:num_preemptions"),
        slots=(),
        cache=(b"vllm:cache_config_info",),
    ),
    "sglang": _Names(
        running=(b"sglang:num_running_reqs",),
        waiting=(b"sglang:num_queue_reqs",),
        kv_share=(b"sglang:token_usage",),
        kv_tokens=(b"sglang:max_total_num_tokens",),
        preemptions=(b"sglang:num_retracted_requests_total",),
        slots=(b"sglang:max_running_requests",),
    ),
}


class _Sample(NamedTuple):
    value: float
    labels: dict[bytes, bytes]

    @property
    def engine(self) -> bytes:
        """Which of the engines that share the address: vLLM's label, or SGLang's."""
        return self.labels.get(b"engine") or self.labels.get(b"dp_rank") or b""


def read(page: bytes) -> EngineReport | None:
    """The engine's report; None if the page is not one of a known engine, or says nothing of its requests."""
    page = b"\n" + page
    for engine, names in ENGINES.items():
        running, waiting = _total(page, names.running), _total(page, names.waiting)
        if running is not None and waiting is not None:
            cache = _first(page, names.cache)
            return EngineReport(
                engine, running, waiting,
                kv_share=_share(_first(page, names.kv_share)),
                kv_tokens=_total(page, names.kv_tokens) or _cache_tokens(cache),
                block_tokens=max((_number(each.labels, b"block_size") for each in cache), default=0) or 1,
                preemptions=_total(page, names.preemptions),
                slots=_total(page, names.slots) or None,
            )  # fmt: skip
    return None


def _first(page: bytes, names: Iterable[bytes]) -> list[_Sample]:
    """The samples of the first name that the page has."""
    for name in names:
        if samples := _samples(page, name):
            return samples
    return []


def _samples(page: bytes, name: bytes) -> list[_Sample]:
    found: list[_Sample] = []
    at = page.find(b"\n" + name)
    for _ in range(MAX_LINES):
        if at < 0:
            break
        start, end = at + 1, page.find(b"\n", at + 1)
        if end < 0:
            break  # the last line of a page ends too; this one was cut
        line = page[start:end]
        after = line[len(name) : len(name) + 1]
        if after in (b"{", b" ", b"\t") and (sample := _sample(line)) is not None:
            found.append(sample)
        at = page.find(b"\n" + name, end)
    return found


def _sample(line: bytes) -> _Sample | None:
    if len(line) > MAX_LINE_BYTES:
        return None
    match = SAMPLE.fullmatch(line)
    if match is None:
        return None
    try:
        return _Sample(float(match["value"]), dict(LABEL.findall(match["labels"] or b"")))
    except ValueError:
        return None


def _total(page: bytes, names: Iterable[bytes]) -> int | None:
    samples = _first(page, names)
    if not samples or not all(0 <= sample.value <= MAX_COUNT for sample in samples):
        return None
    return _summed((sample.engine, int(sample.value)) for sample in samples)


def _summed(counts: Iterable[tuple[bytes, int]]) -> int:
    highest: dict[bytes, int] = {}
    for engine, count in counts:
        highest[engine] = max(count, highest.get(engine, 0))
    return sum(highest.values())


def _share(samples: list[_Sample]) -> float | None:
    values = [sample.value for sample in samples]
    return max(values) if values and all(0 <= value <= 1 for value in values) else None


def _cache_tokens(samples: list[_Sample]) -> int | None:
    """Tokens of vLLM's KV cache, of all its engines: as it says, or blocks times their size in older versions."""
    sizes = [(sample.engine, _size(sample.labels)) for sample in samples]
    return _summed(sizes) if sizes and all(0 < size <= MAX_COUNT for _, size in sizes) else None


def _size(labels: dict[bytes, bytes]) -> int:
    return _number(labels, b"kv_cache_size_tokens") or _number(labels, b"num_gpu_blocks") * _number(
        labels, b"block_size"
    )


def _number(labels: dict[bytes, bytes], name: bytes) -> int:
    """A label's whole number, 0 if there is none."""
    text = labels.get(name, b"")
    return int(text) if text.isdigit() and len(text) <= MAX_DIGITS else 0
