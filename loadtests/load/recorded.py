"""A recording as tenants of a plan: its times, lengths and clients.

A template tenant supplies what a trace lacks: name, deadline, retries, share of streams.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Literal, Self

from pydantic import Field, model_validator

from loadtests.load.plan import MAX_ASKS, MAX_TENANTS, MAX_TOKENS, Recorded, Tenant
from loadtests.load.traces import Part, read, replayed
from loadtests.scenarios.arrivals import Trace
from services.cli.errors import LabError

NO_ROWS = (Recorded(0.0, 1, 1),)  # a template's rows until the trace is read
OTHERS = "others"
MAX_NAME = 64
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class Recording(Trace):
    """A scenario's replay, for a plan.

    A plan knows no capacity: the speed is `time_scale` times the recorded one, or gives a mean of `per_s` requests a
    second over the part.
    """

    kind: Literal["trace"] = "trace"
    per_s: float | None = Field(None, ge=1e-3, le=20_000)
    max_tokens: int = Field(MAX_TOKENS, ge=1, le=MAX_TOKENS)
    max_clients: int = Field(100, ge=1, le=MAX_TENANTS - 1)

    @model_validator(mode="after")
    def _its_speed_is_no_load(self) -> Self:
        if self.load is not None:
            raise ValueError("load is a multiple of a capacity that was measured: give per_s")
        if self.time_scale is not None and self.per_s is not None:
            raise ValueError("either time_scale or per_s")
        return self

    def within(self, seconds: float) -> tuple[Part, float]:
        """The part replayed by a run of `seconds`, and its speed. Raises ValueError with the reason."""
        length_s = inf if self.length_s is None else self.length_s
        if self.per_s is None:  # reads no more of the file than is replayed
            length_s = min(length_s, seconds * (self.time_scale or 1.0))
        try:
            part = read(self.path, self.format, self.start_s, length_s)
        except LabError as error:
            raise ValueError(error.message) from None
        return part, self.time_scale or 1.0 if self.per_s is None else self.per_s / part.per_s


def tenants_of(template: Tenant, recording: Recording, seconds: float) -> tuple[Tenant, ...]:
    """The tenants of the first `seconds` of a replay; with `by_client`, one per client."""
    asked = list(_requests(recording, seconds))
    if not asked:
        raise ValueError(f"{recording.path}: no request in the first {seconds:g} s; start_s begins later in it")
    names = _names(template.name, recording, Counter(client for client, _ in asked))
    requests: dict[str, list[Recorded]] = {name: [] for name in names.values()}
    for client, request in asked:
        requests[names[client]].append(request)
    return tuple(replace(template, name=name, recorded=tuple(each)) for name, each in requests.items())


def _requests(recording: Recording, seconds: float) -> Iterator[tuple[str, Recorded]]:
    part, speed = recording.within(seconds)
    for number, (at_s, row) in enumerate(replayed(part, speed, repeat=recording.repeat)):
        if at_s >= seconds:
            return
        if number == MAX_ASKS:
            raise ValueError(f"{recording.path}: more than {MAX_ASKS:,} requests in {seconds:g} s")
        prompt_tokens, answer_tokens = (_tokens(recording, each) for each in (row.prompt_tokens, row.completion_tokens))
        yield row.client, Recorded(at_s, prompt_tokens, answer_tokens)


def _tokens(recording: Recording, recorded: int) -> int:
    return min(max(1, round(recorded * recording.token_scale)), recording.max_tokens)


def _names(name: str, recording: Recording, asked: Counter[str]) -> dict[str, str]:
    """Each client's tenant; the least active beyond `max_clients` share one."""
    if not recording.by_client:
        return dict.fromkeys(asked, name)
    active = [client for client, _ in asked.most_common()]
    kept, rest = active[: recording.max_clients], active[recording.max_clients :]
    return {client: recorded_name(name, client) for client in kept} | dict.fromkeys(rest, recorded_name(name, OTHERS))


def recorded_name(name: str, client: str) -> str:
    return f"{name}-{_NO_NAME.sub('-', client)}"[:MAX_NAME] if client else name
