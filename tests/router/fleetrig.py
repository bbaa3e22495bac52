"""Workers without sockets, and requests for them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from services.router.request import InferenceRequest
from services.router.upstreams.call import Attempt, Call, Probe, Whole
from services.router.workers.fleet import Fleet
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.upstream import Truncated, UpstreamError

_numbers = count(1)


class FakeUpstream:
    """Answers probes as it is told: with `seen`, with an error, or after a while."""

    def __init__(self, seen: Callable[[], Any] | None = None) -> None:
        self.seen = seen or probe
        self.probes = 0
        self.gave_up: list[str] = []
        self.closed = False

    async def probe(self) -> Probe:
        self.probes += 1
        found = self.seen()
        if isinstance(found, Exception):
            raise found
        announced: Probe = found if isinstance(found, Probe) else await found
        return announced

    async def whole(self, call: Call, attempt: Attempt) -> Whole:
        raise UpstreamError("a fake answers nothing")

    async def open(self, call: Call, attempt: Attempt) -> Any:
        raise UpstreamError("a fake answers nothing")

    async def cancel(self, attempt_id: str) -> None:
        pass

    def give_up(self, why: str) -> None:
        self.gave_up.append(why)

    def close(self) -> None:
        self.closed = True


class FakeReply:
    """A reply whose body comes in the given pieces, and then ends; or is cut."""

    def __init__(self, *pieces: bytes, cut: bool = False, status: int = 200, **headers: str) -> None:
        self.pieces = list(pieces)
        self.cut = cut
        self.status = status
        self.headers = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.lingers = self.closed = False

    async def next_piece(self) -> bytes | None:
        if self.pieces:
            return self.pieces.pop(0)
        if self.cut:
            raise Truncated("the answer was cut before its end")
        return None

    def header(self, name: bytes) -> bytes | None:
        return self.headers.get(name)

    def linger(self) -> None:
        self.lingers = True

    def close(self) -> None:
        self.closed = True


def probe(slots: int = 4, models: tuple[str, ...] = ("m",), **said: Any) -> Probe:
    return Probe(slots, models, **said)


def spec(name: str, **said: Any) -> WorkerSpec:
    entry = {"kind": "openai", "url": f"http://{name}", "models": ("m",), "slots": 4, **said}
    return WorkerSpec(name=name, **{**entry, "models": list(entry["models"])})


def connect(given: WorkerSpec) -> Worker:
    return Worker(given, FakeUpstream(), max_limit=8)


def worker(name: str, *, most: int = 64, kv_tokens: int | None = None, **said: Any) -> Worker:
    """One that has answered its first probe."""
    made = Worker(spec(name, **said), FakeUpstream(), max_limit=most)
    made.kv_tokens = kv_tokens
    made.health.answered(0.0, needed=True)
    return made


def fleet_of(*workers: Worker, seed: int = 1) -> Fleet:
    return Fleet(list(workers), Random(seed))


def asked(
    *, model: str = "m", work: float = 10.0, prompt: int = 5, answer: int = 5, affinity: int = 0, context: int = 0
) -> InferenceRequest:
    return InferenceRequest(
        id=f"{next(_numbers)}", tenant="t", arrived_at=0.0, deadline=1.0, prompt_tokens=prompt, max_tokens=answer,
        context_tokens=context, model=model, affinity=affinity, charge_tokens=work,
    )  # fmt: skip
