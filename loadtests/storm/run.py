"""One run, from reading the capacity to the last answer.

    preparing    reads capacity and counters; waits for the rest of the last run
    storming     sends the load; faults start and end
    settling     no new requests; waits for the last answers

In every case, also on stop or error, clients disconnect and faults end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from loadtests.load.answer import Answer
from loadtests.load.arrivals import Ask, asks
from loadtests.load.asking import Asking, Questions
from loadtests.load.client import START_IN_S, Bounds, Client
from loadtests.load.plan import Plan
from loadtests.storm.capacity import Capacity, NoCapacity, announced
from loadtests.storm.config import StormSettings
from loadtests.storm.ledger import FAILED, REFUSED, Books
from loadtests.storm.scenarios import Button, Storm
from loadtests.storm.silence import NotSilenced
from loadtests.storm.sliders import MAX_RETURNING
from loadtests.storm.troubles import NotSlowed, begin_troubles
from loadtests.storm.watching import Counters, Frame, Watching, counters
from services.contracts.storm import Ended, Mark, Phase, PolicySwitches, Running
from services.contracts.storm import Run as RunResult
from services.runtime.log import Log

QUESTIONS = (
    "When does Weir refuse a request?",
    "What is a hint?",
    "How are tenants told apart?",
    "What happens to a request whose client leaves?",
    "How is capacity shared between tenants?",
    "What is the degradation ladder?",
    "What does a worker do when it is full?",
    "How does retrieval keep its budget?",
)
"""few, so that a cache has hits"""
PASSAGES = 2
EARLY = (0.1, 0.5)
"""Range of the deadline's share after which early leavers disconnect."""
GRACE_S = 0.5
"""Allowed time of a last answer beyond its client's timeout."""
REST_WITHIN_S = 15.0
"""The storm starts after this time even if the router is not idle."""
FIRST_FRAME_WITHIN_S, LOOK_EVERY_S = 0.5, 0.1
COUNTED_AFTER_S = 0.2
"""By then the router has noticed and counted disconnected clients."""
COUNTED_WITHIN_S = 0.5
WORDS: dict[Phase, str] = {"preparing": "until the router is at rest", "settling": "the last answers"}


class Short(Answer):
    """An answer to a storm's request, with a small limit because many are under way."""

    __slots__ = ()
    max_bytes = 262_144


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A validated request for a run."""

    id: str
    button: Button
    values: Mapping[str, float]
    began_at_ms: int


class Run:
    def __init__(self, request: RunRequest, settings: StormSettings, log: Log) -> None:
        self.request = request
        self.storm: Storm = request.button.storm(request.values)
        self.books = Books()
        self.phase: Phase = "preparing"
        self._settings = settings
        self._token = settings.shared_token
        self._log = log
        self._capacity: Capacity | None = None
        self._per_s = 0.0  # requests per second at load 1
        self._client: Client | None = None
        self._frame: Frame | None = None
        self._policies: list[PolicySwitches] = []
        self._before: Counters | None = None
        self._after: Counters | None = None
        self._lasted_s = self._storm_s = 0.0
        self._ended: Ended = "failed"
        self._why = ""

    # Run

    async def play(self) -> None:
        """Play the whole run. When cancelled, it ends at once as stopped."""
        watching = asyncio.ensure_future(Watching(self._settings.storm_router_url, self._on_frame).watch())
        try:
            await self._play()
            self._ended = "done"
        except asyncio.CancelledError:
            self._ended = "stopped"
        except (NoCapacity, NotSilenced, NotSlowed) as error:
            self._why = str(error)
        except Exception as error:
            self._why = f"a fault of the bench: {type(error).__name__}"
            self._log.error("a run failed", run=self.request.id, error=repr(error))
        finally:
            self._lasted_s = self._now_s
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await asyncio.sleep(COUNTED_AFTER_S)
            self._after = await self._counters(COUNTED_WITHIN_S)

    async def _play(self) -> None:
        self._capacity = await self._measured()
        await self._rest()
        self._before = await self._counters()
        self._per_s = self.storm.per_s(self._capacity.per_s, self._settings.storm_max_rps)
        self._client = client = self._made(self.storm.plan(self._per_s))
        self.phase, self._policies = "storming", self._policies[-1:]
        playing = asyncio.ensure_future(client.run())
        lasting = asyncio.ensure_future(asyncio.sleep(START_IN_S + self.storm.seconds))
        tasks = [lasting, *begin_troubles(self.storm, self._settings)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:  # a fault that could not be started ends the run
                task.result()
            self._storm_s, self.phase = self.storm.seconds, "settling"
            client.stop()
            await asyncio.wait({playing}, timeout=self.storm.client_timeout_s + GRACE_S)
        finally:  # clients disconnect before the faults end
            self._storm_s = self._storm_s or self._now_s
            client.stop(at_once=True)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await playing

    def _made(self, plan: Plan) -> Client:
        settings, url = self._settings, self._settings.storm_router_url
        ask = Questions(url, lambda number: QUESTIONS[number % len(QUESTIONS)], PASSAGES)
        return Client(
            plan,
            url,
            _some_leave(asks(plan), self.storm),
            requests=ask if self.storm.asks else Asking(url, plan.route),
            answer=Short,
            bounds=Bounds(settings.storm_max_rps, settings.storm_connections, MAX_RETURNING),
            ledger=self.books,
        )

    async def _measured(self) -> Capacity:
        given_per_s = self._settings.storm_capacity_rps
        try:
            capacity = await announced(self._settings.worker_urls, self.storm.tokens, self._token)
        except NoCapacity:
            if not given_per_s:
                raise
            return Capacity(given_per_s)
        return Capacity(given_per_s or capacity.per_s, capacity.slots)

    async def _counters(self, within_s: float = 2.0) -> Counters | None:
        tenants = [group.name for group in self.storm.file.tenants]
        return await counters(self._settings.storm_metrics_url, tenants, within_s, self._token)

    async def _rest(self) -> None:
        """Wait until the router is idle, if it publishes its state."""
        now = asyncio.get_running_loop().time
        began_at = now()
        while now() < began_at + (FIRST_FRAME_WITHIN_S if self._frame is None else REST_WITHIN_S):
            if self._frame is not None and self._frame.at_rest:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def _on_frame(self, frame: Frame) -> None:
        self._frame = frame
        self.books.router_state(self._now_s, frame.waiting.requests, frame.level)
        if frame.policy is not None and (not self._policies or self._policies[-1] != frame.policy):
            del self._policies[1:]  # keep the first and the last
            self._policies.append(frame.policy)

    @property
    def _now_s(self) -> float:
        return 0.0 if self._client is None else self._client.now_s

    # Results

    def running(self) -> Running:
        books, now_s = self.books, self._now_s
        return books.all.fill(
            Running(
                **self._both(now_s),
                phase=self.phase,
                now=WORDS.get(self.phase) or self.storm.words_at(now_s),
                elapsed_s=round(now_s, 2),
                rate_per_s=0.0 if self.phase in WORDS else round(self.storm.times_at(now_s) * self._per_s, 1),
                open=books.under_way,
            )
        )

    def result(self) -> RunResult:
        books = self.books
        asked, answered = books.people
        could = (self._capacity_per_s or 0.0) * self._storm_s
        slot_s = (self._capacity.slots if self._capacity else 0) * self._lasted_s
        counts, before, after = books.all.counts, self._before, self._after
        wasted_s = max(0.0, after.wasted_s - before.wasted_s) if before and after else None
        return books.all.fill(
            RunResult(
                **self._both(self._lasted_s),
                lasted_s=round(self._lasted_s, 2),
                ended=self._ended,
                why=self._why,
                policy=self._policies[0] if self._policies else None,
                policy_changed=len(self._policies) > 1,
                on_time_share=_share(counts["on_time"], counts["sent"]),
                goodput_share=_share(counts["on_time"], could),
                answered_share=_share(answered, asked),
                wasted_s=None if wasted_s is None else round(wasted_s, 2),
                wasted_share=None if wasted_s is None else _share(wasted_s, slot_s),
                sources=dict(books.all.sources),
                router_counted=dict(sorted((after.requests - before.requests).items())) if before and after else {},
                worst_lag_ms=round(books.worst_lag_s * 1000, 1),
            )
        )

    def _both(self, until_s: float) -> dict[str, Any]:
        """The fields common to a running and an ended run."""
        books, storm, file = self.books, self.storm, self.storm.file
        return {
            "run": self.request.id,
            "scenario": self.request.button.name,
            "title": file.title,
            "caption": self.request.button.caption,
            "watch": list(file.watch),
            "began_at_ms": self.request.began_at_ms,
            "seconds": storm.seconds,
            "sliders": dict(self.request.values),
            "capacity_per_s": self._capacity_per_s,
            "capped": self._capacity is not None and self._per_s < self._capacity.per_s,
            "p50_ms": None,
            "p95_ms": None,
            "deadline_ms": 1000 * storm.deadline_s,
            "series": books.series(until_s),
            "tenants": books.tenants(),
            "refused_by_code": dict(books.all.codes[REFUSED]),
            "failed_by_code": dict(books.all.codes[FAILED]),
            "marks": [Mark(round(from_s, 2), words) for from_s, words in storm.chapters if from_s > 0],
        }

    @property
    def _capacity_per_s(self) -> float | None:
        return None if self._capacity is None else round(self._capacity.per_s, 2)


def _some_leave(source: Iterator[Ask], storm: Storm) -> Iterator[Ask]:
    """The same requests, with an early disconnect for some clients."""
    chance = Random(storm.file.seed)
    for ask in source:
        early = chance.random() < storm.leaving
        yield replace(ask, client_timeout_s=storm.deadline_s * chance.uniform(*EARLY)) if early else ask


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None
