"""Embedding beside the event loop: a model in another process, a bounded queue, and batches.

Matrix products hold a processor for milliseconds, so they run elsewhere (`modelprocess.py`), one pass at a time. Texts
that arrive meanwhile share the next pass: a batch never waits to fill. Queries have deadlines and go before bulk work,
which runs one text per pass, so that no query waits behind a long pass. `embedding_batcher.py` orders the queries and
rejects those without enough time. Texts of cancelled callers are skipped.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.retrieval.deadline import cancel_and_wait
from services.retrieval.embedding_batcher import BatchPlan, PassDurationModel, estimate_tokens, plan_batch
from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.minilm import Floats
from services.retrieval.modelprocess import ModelHello

MAX_PASS = 4  # max queries in a pass: each waits for the whole pass, as do later arrivals
WARM_PASSES = 3  # measured passes: while all services start, a single one may be several times too slow
WARM_UP = "A weir holds a river at its level: what the turbines cannot take goes over the edge, in plain sight."


class Model(Protocol):
    """Computes embeddings in another process, for one list of texts at a time: a vector and a token count for each."""

    async def load(self) -> ModelHello: ...

    async def embed(self, texts: Sequence[str]) -> list[tuple[Floats, int]]: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Embedded:
    """Unit vectors, one for each text in order, and the number of tokens read."""

    vectors: Floats
    tokens: int


class Embedder(Protocol):
    """What the rest of the service uses.

    Vectors are there by `due`, in seconds of the loop's clock, or `EmbedderBusy` is raised as soon as that is known to
    be impossible. Without `due` the texts are bulk work, which yields to queries. Raises `EmbedderFull` where the queue
    is full, and `EmbedderFailed`.
    """

    name: str
    fingerprint: str

    async def embed(self, texts: Sequence[str], *, due: float | None = None) -> Embedded: ...


class EmbedderFull(Exception):
    """The queue has no room for these texts."""


class EmbedderFailed(Exception):
    """The model could not embed the text; the message says why."""


class EmbedderBusy(Exception):
    """The text cannot be embedded by its deadline."""


@dataclass(slots=True, eq=False)
class _Job:
    """One queued text. Once its future is done, no caller wants it."""

    text: str
    due: float
    tokens: int
    vector: asyncio.Future[tuple[Floats, int]]
    is_bulk: bool


class QueuedEmbedder:
    """An `Embedder` over a model that is loaded by `start`."""

    name = fingerprint = tokenizer = ""
    confined: Sequence[str] = ()  # how its process is confined: confine.py

    def __init__(self, model: Model, *, queue_size: int, metrics: RetrievalMetrics) -> None:
        self.warm = False
        self._model = model
        self._queue_size = queue_size
        self._metrics = metrics
        self._query_durations = PassDurationModel()
        self._bulk_durations: PassDurationModel | None = None
        self._queries: list[_Job] = []
        self._bulk: deque[_Job] = deque()
        self._passing: list[_Job] = []
        self._free_at = -math.inf
        self._arrived = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._queries) + len(self._bulk)

    async def start(self) -> None:
        """Load the model and run a few passes: the first query needs warm pages and measured durations."""
        hello = await self._model.load()
        self.name, self.fingerprint, self.tokenizer = hello.name, hello.fingerprint, hello.tokenizer
        self.confined = hello.confined
        await self._model.embed([WARM_UP])
        self._query_durations.record(
            estimate_tokens(WARM_UP), min([await self._measured(WARM_UP) for _ in range(WARM_PASSES)])
        )
        self._pump = asyncio.get_running_loop().create_task(self._run(), name="embedder")
        self._pump.add_done_callback(self._stopped)
        self.warm = True

    async def _measured(self, text: str) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._model.embed([text])
        return loop.time() - began

    async def stop(self) -> None:
        """Stop the passes and cancel all waiting callers."""
        await cancel_and_wait(self._pump)
        for job in (*self._passing, *self._queries, *self._bulk):
            job.vector.cancel()
        await self._model.stop()

    async def embed(self, texts: Sequence[str], *, due: float | None = None) -> Embedded:
        """The vectors of these texts. When the caller is cancelled, queued texts are dropped."""
        if self.waiting + len(texts) > self._queue_size:
            raise EmbedderFull(f"{self.waiting} texts are waiting to be embedded, {self._queue_size} may")
        jobs = [_job(text, due) for text in texts]
        if due is None:
            self._bulk.extend(jobs)
        else:
            self._queries.extend(jobs)
            self._replan()
        self._arrived.set()
        try:
            parts = await asyncio.gather(*(job.vector for job in jobs))
        finally:
            self._forget(jobs)
        return Embedded(np.stack([vector for vector, _ in parts]), sum(tokens for _, tokens in parts))

    def _forget(self, jobs: Sequence[_Job]) -> None:
        """Drop these texts from the queues: their caller is served or has gone."""
        for job in jobs:
            job.vector.cancel()
            for queue in (self._queries, self._bulk):
                if job in queue:  # `remove` would format a missing job, vector included, into its error
                    queue.remove(job)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            jobs = self._next_jobs()
            if jobs:
                await self._pass(jobs)
            else:
                self._arrived.clear()

    def _stopped(self, pump: asyncio.Task[None]) -> None:
        """After a fault of the pump, unlike after `stop`, fail all waiting callers and report it."""
        if pump.cancelled():
            return
        self.warm = False
        _fail([*self._passing, *self._queries, *self._bulk], EmbedderFailed("the embedder has stopped"))
        report = {"message": "the embedder has stopped", "exception": pump.exception(), "task": pump}
        asyncio.get_running_loop().call_exception_handler(report)

    async def _pass(self, jobs: list[_Job]) -> None:
        loop = asyncio.get_running_loop()
        began, tokens = loop.time(), sum(job.tokens for job in jobs)
        durations = self._durations_of(jobs)
        self._passing, self._free_at = jobs, began + durations.duration_s(tokens)
        try:
            embedded = await self._model.embed([job.text for job in jobs])
        except Exception as error:  # it fails this pass only
            _fail(jobs, EmbedderFailed(f"{type(error).__name__}: {error}"))
            return
        finally:
            self._free_at = -math.inf
        durations.record(tokens, loop.time() - began)
        self._metrics.embed_batch.observe(len(jobs))
        self._metrics.embed_seconds.observe(loop.time() - began)
        for job, result in zip(jobs, embedded, strict=True):
            if not job.vector.done():
                job.vector.set_result(result)

    def _durations_of(self, jobs: Sequence[_Job]) -> PassDurationModel:
        """Queries and bulk texts are predicted apart: hundreds of long texts say little about one short question."""
        if not jobs[0].is_bulk:
            return self._query_durations
        if self._bulk_durations is None:
            self._bulk_durations = self._query_durations.copy()
        return self._bulk_durations

    def _next_jobs(self) -> list[_Job]:
        """The texts of the next pass; bulk work only one at a time, since a pass cannot be interrupted."""
        planned = self._replan()
        self._passing = []
        if planned.next:
            self._queries = planned.later
            return planned.next
        while self._bulk:
            job = self._bulk.popleft()
            if not job.vector.done():
                return [job]
        return []

    def _replan(self) -> BatchPlan[_Job]:
        """Plan the next pass and reject the queries without enough time. The others stay in order of arrival."""
        self._queries = [job for job in self._queries if not job.vector.done()]
        planned = plan_batch(
            self._queries,
            free_at=max(asyncio.get_running_loop().time(), self._free_at),
            is_idle=not self._passing,
            max_texts=MAX_PASS,
            duration_s=self._query_durations.duration_s,
        )
        _fail(planned.late, EmbedderBusy())
        self._queries = [job for job in self._queries if not job.vector.done()]
        return planned


def _job(text: str, due: float | None) -> _Job:
    vector = asyncio.get_running_loop().create_future()
    return _Job(text, math.inf if due is None else due, estimate_tokens(text), vector, due is None)


def _fail(jobs: Sequence[_Job], error: Exception) -> None:
    for job in jobs:
        if not job.vector.done():
            job.vector.set_exception(error)
