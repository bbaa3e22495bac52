"""Embedding beside the event loop: one thread, a bounded line, and batches of whatever has gathered.

Matrix products hold the processor for milliseconds, so they run on a thread of their own, one pass at a time. Requests
that arrive meanwhile share the next pass: a batch forms from waiting, never by waiting. A query, which someone with a
deadline waits for, goes before bulk work, and bulk work runs in short passes so that a query is not kept behind a
long one. Of queries the newest go first: when more come than can be served, the budget of the oldest is spent anyway,
and serving them would make the next ones late as well. Whoever has gone by the time their turn comes is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # carries no types

from services.retrieval.metrics import RetrievalMetrics
from services.retrieval.minilm import Floats

MAX_PASS = 4  # most queries in one pass: all of them wait for the last, and those that come meanwhile as well
WARM_UP = "A weir holds a river at its level: what the turbines cannot take goes over the edge, in plain sight."


class Model(Protocol):
    """What computes: synchronous, used from one thread at a time."""

    name: str
    fingerprint: str

    def tokenize(self, text: str) -> list[int]: ...

    def embed(self, texts: Sequence[Sequence[int]]) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Embedded:
    """Unit vectors, one per text in order, and the tokens that were read to make them."""

    vectors: Floats
    tokens: int


class Embedder(Protocol):
    """What the rest of the service sees. Raises `EmbedderFull` at once, rather than making anyone wait without end."""

    name: str
    fingerprint: str

    async def embed(self, texts: Sequence[str], *, urgent: bool) -> Embedded: ...


class EmbedderFull(Exception):
    """As many texts as allowed are waiting already."""


@dataclass(slots=True, eq=False)
class _Job:
    """One text in line. Nobody wants it any more once its future is done."""

    text: str
    vector: asyncio.Future[tuple[Floats, int]]


class ThreadedEmbedder:
    """An `Embedder` over a model that is loaded by `start`, on the thread that will run it."""

    name = fingerprint = ""

    def __init__(self, load: Callable[[], Model], *, threads: int, queue_size: int, metrics: RetrievalMetrics) -> None:
        self.warm = False
        self._load = load
        self._threads = threads
        self._queue_size = queue_size
        self._metrics = metrics
        self._urgent: deque[_Job] = deque()
        self._bulk: deque[_Job] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._arrived = asyncio.Event()
        self._model: Model | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Texts in line."""
        return len(self._urgent) + len(self._bulk)

    async def start(self) -> None:
        """Load the model and run it once: the first query must not be the one that pays for cold pages."""
        loop = asyncio.get_running_loop()
        model = await loop.run_in_executor(self._thread, self._load_and_warm)
        self._model, self.name, self.fingerprint = model, model.name, model.fingerprint
        self._pump = loop.create_task(self._run(model), name="embedder")
        self.warm = True

    def _load_and_warm(self) -> Model:
        threadpool_limits(self._threads, user_api="blas")
        model = self._load()
        model.embed([model.tokenize(WARM_UP)])
        return model

    async def stop(self) -> None:
        """Stop taking turns; a pass that runs is left to end by itself."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})
        for job in (*self._urgent, *self._bulk):
            job.vector.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def embed(self, texts: Sequence[str], *, urgent: bool) -> Embedded:
        """Vectors for these texts. When the caller is cancelled, what has not begun is not computed."""
        if self.waiting + len(texts) > self._queue_size:
            raise EmbedderFull(f"{self.waiting} texts are waiting to be embedded, {self._queue_size} may")
        loop = asyncio.get_running_loop()
        jobs = [_Job(text, loop.create_future()) for text in texts]
        line = self._urgent if urgent else self._bulk
        line.extend(jobs)
        self._arrived.set()
        try:
            parts = await asyncio.gather(*(job.vector for job in jobs))
        except asyncio.CancelledError:
            for job in jobs:
                with contextlib.suppress(ValueError):  # its turn has come already
                    line.remove(job)
            raise
        return Embedded(np.stack([vector for vector, _ in parts]), sum(tokens for _, tokens in parts))

    async def _run(self, model: Model) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            jobs = self._next_jobs()
            if not jobs:
                self._arrived.clear()
                continue
            began = loop.time()
            try:
                embedded = await loop.run_in_executor(self._thread, _embed, model, [job.text for job in jobs])
            except Exception as error:  # whatever it was, it is theirs alone: the line goes on
                _fail(jobs, error)
                continue
            self._metrics.embed_batch.observe(len(jobs))
            self._metrics.embed_seconds.observe(loop.time() - began)
            for job, result in zip(jobs, embedded, strict=True):
                if not job.vector.done():
                    job.vector.set_result(result)

    def _next_jobs(self) -> list[_Job]:
        """Whose turn it is; of bulk work it is one text's at a time, for a pass cannot be interrupted."""
        jobs: list[_Job] = []
        while self._urgent and len(jobs) < MAX_PASS:
            _join(jobs, self._urgent.pop())
        while self._bulk and not jobs:
            _join(jobs, self._bulk.popleft())
        return jobs


def _join(jobs: list[_Job], job: _Job) -> None:
    if not job.vector.done():
        jobs.append(job)


def _embed(model: Model, texts: Sequence[str]) -> list[tuple[Floats, int]]:
    """What happens on the thread."""
    ids = [model.tokenize(text) for text in texts]
    return [(vector, len(each)) for vector, each in zip(model.embed(ids), ids, strict=True)]


def _fail(jobs: Sequence[_Job], error: Exception) -> None:
    for job in jobs:
        if not job.vector.done():
            job.vector.set_exception(error)
