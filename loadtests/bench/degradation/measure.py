"""Which loads are put on what, and in which order."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from loadtests.bench.degradation.corpus import TENANT, Taken
from loadtests.bench.degradation.ladders import LADDERS, OFF, WHOLE
from loadtests.bench.degradation.load import ANSWER_TOKENS, TOP_K, Run, ask, question
from loadtests.bench.degradation.stand import AMPLE_MS, DEADLINE_MS, SLOTS, USUAL_MS, Stand, stand
from loadtests.faults.proxy.fault import HEALTHY, Fault
from loadtests.load.closed import Tally, closed_loop, connect, post
from loadtests.report.progress import Say
from services.contracts.search import Passage
from services.core.ladder import LADDER, Level
from services.router.config import RouterSettings
from services.router.passages import prompt
from services.router.passages.prompt import estimate_tokens

LOADS = (1.0, 1.5, 2.0, 3.0)
RETRIEVAL_LOADS = (1.0, 2.0)
SLOW = Fault(latency_s=0.1)
SLOW_LOAD = 1.5
RETRIEVING = 8
LEAST_PER_S = 2.0  # on a machine so busy that hardly anything is found in time
EACH_LEVEL = 40
PROMPTS, TRIES = 20, 50
CONTEXT_TOKENS: int = RouterSettings.model_fields["context_tokens"].default


@dataclass(frozen=True, slots=True)
class Length:
    """Of a load, and of what is not counted at its beginning: a level has been found by then."""

    seconds: float
    warm_up_s: float
    capacity_s: float


USUAL_LENGTH = Length(15.0, 4.0, 6.0)
QUICK_LENGTH = Length(6.0, 2.0, 2.0)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a question costs at a level, alone on the machine."""

    level: int
    passages: int
    context_tokens: float
    ef_share: float
    embed_ms: float
    search_ms: float


@dataclass
class Measured:
    """Everything; the keys of runs are load and ladder."""

    rows: int
    taken: list[Taken]
    capacity_per_s: float = 0.0
    retrieval_per_s: float = 0.0
    costs: list[Cost] = field(default_factory=list)
    workers: dict[tuple[float, str], Run] = field(default_factory=dict)
    slow: dict[tuple[float, str], Run] = field(default_factory=dict)
    retrieval: dict[tuple[float, str], Run] = field(default_factory=dict)


class Bench:
    """One run of everything over one stand."""

    def __init__(self, made: Stand, rows: int, length: Length, say: Say) -> None:
        self._stand = made
        self._length = length
        self._say = say
        self._numbers = itertools.count(100_000, 100_000)  # where each load's questions begin
        self.measured = Measured(rows, made.taken)

    async def all(self) -> Measured:
        measured = self.measured
        measured.costs = [await self._cost(level) for level in range(len(LADDER)) if LADDER[level].retrieval]
        measured.capacity_per_s = await self._capacity()
        self._say(f"the workers answer {measured.capacity_per_s:.1f}/s in full")
        for load in LOADS:
            for ladder in LADDERS:
                measured.workers[load, ladder] = await self._load(
                    load * measured.capacity_per_s, ladder, "usual", AMPLE_MS
                )
        await self._stand.database.become(SLOW)
        for ladder in (OFF, WHOLE):
            measured.slow[SLOW_LOAD, ladder] = await self._load(
                SLOW_LOAD * measured.capacity_per_s, ladder, "usual", USUAL_MS
            )
        await self._stand.database.become(HEALTHY)
        measured.retrieval_per_s = await self._retrieval_capacity()
        self._say(f"retrieval finds passages for {measured.retrieval_per_s:.1f} new questions a second")
        for load in RETRIEVAL_LOADS:
            for ladder in (OFF, WHOLE):
                per_s = load * measured.retrieval_per_s
                measured.retrieval[load, ladder] = await self._load(per_s, ladder, "plenty", USUAL_MS)
        return measured

    async def _load(self, per_s: float, ladder: str, workers: str, budget_ms: float) -> Run:
        length = self._length
        async with self._stand.router(ladder, workers, budget_ms) as router:
            run = await ask(router.url, per_s, DEADLINE_MS, length.seconds, length.warm_up_s, first=next(self._numbers))
        self._say(
            f"{per_s:6.1f}/s, {workers} workers, ladder {ladder:<14} {run.on_time_per_s:6.1f}/s on time, "
            f"{run.worth_per_s:6.1f}/s in worth, levels {_shown(run.levels)}, from {_shown(run.sources)}"
        )
        return run

    async def _capacity(self) -> float:
        """Answers in full a second, asked of the workers themselves by as many as keep them busy."""
        prompts = [prompt.build(question(number), await self._passages(number)) for number in range(PROMPTS)]
        bodies, numbers = itertools.cycle(map(msgspec.to_builtins, prompts)), itertools.count()
        ports = [int(worker.url.rsplit(":", 1)[1]) for worker in self._stand.workers["usual"]]

        def asking(port: int) -> Callable[[], bytes]:
            return lambda: post(port, "/generate", _generate(next(bodies), next(numbers)))

        tallies = await asyncio.gather(
            *(closed_loop(port, asking(port), SLOTS, self._length.capacity_s) for port in ports)
        )
        if any(set(tally.statuses) != {200} for tally in tallies):
            raise RuntimeError(f"the capacity could not be measured: {[tally.statuses for tally in tallies]}")
        return sum(tally.per_second for tally in tallies)

    async def _passages(self, number: int) -> list[Passage]:
        """As many as there are at level 0; on a busy machine the first try may come to nothing."""
        for _ in range(TRIES):
            [reply] = await self._retrieve(number, LADDER[0])
            if reply["results"]:
                return msgspec.convert(reply["results"], list[Passage])
        raise RuntimeError(f"no passages in {TRIES} tries: this machine is too busy")

    async def _retrieve(self, number: int, rung: Level) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []

        def judge(body: bytes) -> str:
            told.append(json.loads(body))
            return ""

        port = self._stand.retrieval_port
        connection = await connect(port, Tally(judge))
        await connection.ask(post(port, "/retrieve", _retrieve(number, rung)))
        connection.transport.close()
        return told

    async def _retrieval_capacity(self) -> float:
        """New questions a second for which passages are found within the budget."""
        numbers, port = itertools.count(next(self._numbers)), self._stand.retrieval_port
        await self._passages(next(numbers))  # the database is well again
        tally = await closed_loop(
            port, lambda: post(port, "/retrieve", _retrieve(next(numbers), LADDER[0], USUAL_MS)), RETRIEVING,
            self._length.capacity_s, judge=_verdict,
        )  # fmt: skip
        self._say(f"of {RETRIEVING} clients at a time: {tally.verdicts}")
        return max(tally.rate_of("db"), LEAST_PER_S)

    async def _cost(self, level: int) -> Cost:
        """One at a time, each a new question; those for which there was no time are not counted."""
        rung, numbers = LADDER[level], itertools.count(next(self._numbers))
        replies: list[dict[str, Any]] = []
        for number in itertools.islice(numbers, EACH_LEVEL):
            replies += [reply for reply in await self._retrieve(number, rung) if reply["source"] == "db"]
        contexts = [sum(estimate_tokens(each["text"]) for each in reply["results"]) for reply in replies]
        embed_ms, search_ms = (_median(reply[name] for reply in replies) for name in ("embed_ms", "search_ms"))
        passages = max((len(reply["results"]) for reply in replies), default=0)
        kept = min(_median(contexts), rung.context_tokens(CONTEXT_TOKENS))
        return Cost(level, passages, kept, rung.ef_search_share, embed_ms, search_ms)


async def measure(rows: int, seed: int, length: Length, say: Say) -> Measured:
    """Everything."""
    async with stand(rows, seed) as made:
        say(f"{rows:,} chunks stored, and everything runs")
        return await Bench(made, rows, length, say).all()


def _retrieve(number: int, rung: Level, budget_ms: float = AMPLE_MS) -> bytes:
    depth = max(1, -int(-TOP_K * rung.retrieval_depth_share // 1))
    asked = {"query": question(number), "tenant": TENANT, "top_k": depth, "effort": rung.ef_search_share}
    return _json({**asked, "budget_ms": budget_ms, "cache_ttl_s": 0})


def _generate(messages: list[dict[str, str]], number: int) -> bytes:
    asked = {"messages": messages, "max_tokens": ANSWER_TOKENS, "deadline_ms": 60_000, "stream": False}
    return _json({"id": f"capacity-{number}", "tenant": TENANT, **asked})


def _median(values: Iterable[float]) -> float:
    """0 for nothing."""
    found = list(values)
    return median(found) if found else 0.0


def _verdict(body: bytes) -> str:
    """Where the passages came from, or why there are none."""
    said = json.loads(body)
    return str(said["source"] if said["source"] == "db" else said["reason"])


def _json(asked: Mapping[str, object]) -> bytes:
    return json.dumps(asked).encode()


def _shown(shares: Mapping[Any, float]) -> str:
    return " ".join(f"{value}:{share:.0%}" for value, share in shares.items())
