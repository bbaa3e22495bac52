"""A recording as tenants of a plan: its times, its lengths, its clients. `loadtests/load/traces.py` reads it.

What a trace does not have, a template tenant gives: name, deadline, retries, share of streams.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import get_args

from loadtests.load.plan import MAX_ASKS, MAX_TENANTS, MAX_TOKENS, Recorded, Tenant, one_of, within
from loadtests.load.traces import Part, TraceFormat, read, replayed
from services.cli.errors import LabError

FORMATS: tuple[TraceFormat, ...] = get_args(TraceFormat)
NO_ROWS = (Recorded(0.0, 1, 1),)  # what a template has until its rows are known
OTHERS = "others"
MOST_NAME = 64
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Recording:
    """Which part of a trace, how fast, how long its texts are, and whose its requests become.

    `time_scale` times as fast as recorded; or as fast as gives `per_s` requests a second on average over the part.
    """

    path: Path
    format: TraceFormat | None = None
    time_scale: float | None = None
    per_s: float | None = None
    start_s: float = 0.0
    length_s: float | None = None
    repeat: bool = True
    token_scale: float = 1.0
    most_tokens: int = MAX_TOKENS
    by_client: bool = False
    most_clients: int = 100

    def __post_init__(self) -> None:
        if self.format is not None:
            one_of("format", self.format, FORMATS)
        if self.time_scale is not None and self.per_s is not None:
            raise ValueError("trace: either time_scale or per_s")
        within("time_scale", 1.0 if self.time_scale is None else self.time_scale, 1e-3, 1e6)
        within("per_s", 1.0 if self.per_s is None else self.per_s, 1e-3, 20_000)
        within("start_s", self.start_s, 0, 1e9)
        within("length_s", 1.0 if self.length_s is None else self.length_s, 1e-3, 1e9)
        within("token_scale", self.token_scale, 1e-4, 1000)
        within("most_tokens", self.most_tokens, 1, MAX_TOKENS)
        within("most_clients", self.most_clients, 1, MAX_TENANTS - 1)

    def part(self, seconds: float) -> tuple[Part, float]:
        """What a run of this length replays, and how many times as fast. ValueError says what is wrong with it."""
        length_s = inf if self.length_s is None else self.length_s
        if self.per_s is None:  # no more of the file is read than is replayed
            length_s = min(length_s, seconds * (self.time_scale or 1.0))
        try:
            part = read(self.path, self.format, self.start_s, length_s)
        except LabError as error:
            raise ValueError(error.message) from None
        return part, self.time_scale or 1.0 if self.per_s is None else self.per_s / part.per_s


def tenants_of(template: Tenant, recording: Recording, seconds: float) -> tuple[Tenant, ...]:
    """Who asks in the first so many seconds of a replay; each client a tenant of its own if it is `by_client`."""
    asked = list(_requests(recording, seconds))
    if not asked:
        raise ValueError(f"{recording.path}: no request in the first {seconds:g} s; start_s begins later in it")
    names = _names(template.name, recording, Counter(client for client, _ in asked))
    requests: dict[str, list[Recorded]] = {name: [] for name in names.values()}
    for client, request in asked:
        requests[names[client]].append(request)
    return tuple(replace(template, name=name, recorded=tuple(each)) for name, each in requests.items())


def _requests(recording: Recording, seconds: float) -> Iterator[tuple[str, Recorded]]:
    part, speed = recording.part(seconds)
    for number, (at_s, row) in enumerate(replayed(part, speed, repeat=recording.repeat)):
        if at_s >= seconds:
            return
        if number == MAX_ASKS:
            raise ValueError(f"{recording.path}: more than {MAX_ASKS:,} requests in {seconds:g} s")
        prompt_tokens, answer_tokens = (_tokens(recording, each) for each in (row.prompt_tokens, row.completion_tokens))
        yield row.client, Recorded(at_s, prompt_tokens, answer_tokens)


def _tokens(recording: Recording, recorded: int) -> int:
    return min(max(1, round(recorded * recording.token_scale)), recording.most_tokens)


def _names(name: str, recording: Recording, asked: Counter[str]) -> dict[str, str]:
    """The tenant that each client of the trace becomes; the least active of too many share one."""
    if not recording.by_client:
        return dict.fromkeys(asked, name)
    active = [client for client, _ in asked.most_common()]
    kept, rest = active[: recording.most_clients], active[recording.most_clients :]
    return {client: recorded_name(name, client) for client in kept} | dict.fromkeys(rest, recorded_name(name, OTHERS))


def recorded_name(name: str, client: str) -> str:
    """What a client of the trace is called."""
    return f"{name}-{_NO_NAME.sub('-', client)}"[:MOST_NAME] if client else name
