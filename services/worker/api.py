"""The worker's HTTP routes.

The status of a stream is sent with the first token. A request that ends earlier gets a status of its own (429, 503,
504), so the router can retry it. A request that ends later gets a `failed` event, and the stream ends.

The event `done` carries the grant of the request's end. Of every other end the grant is pushed on the router's stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count

import msgspec
from fastapi import FastAPI, Response

from services.contracts.generate import (
    CancelReply,
    Done,
    Failed,
    GenerateRequest,
    InferReply,
    InferRequest,
    Token,
    WorkerStatus,
)
from services.contracts.lease import LeaseGrant
from services.core.outcome import Outcome
from services.runtime.api import Call, describe, json_answer, native
from services.runtime.errors import BadInput, NoSuchModel, Refused, WeirError
from services.runtime.health import Readiness
from services.runtime.http import Exchange
from services.runtime.leaseroutes import LEASE_EXAMPLES, add_lease_routes
from services.runtime.leasewire import wire_grant
from services.runtime.strictjson import LONG, decode
from services.worker.batching import EngineLoop
from services.worker.engines.faults import Faults
from services.worker.job import Job
from services.worker.metrics import WorkerMetrics
from services.worker.spans import steps
from services.worker.stream import Dropped

NDJSON = b"application/x-ndjson"
EXAMPLES = (
    GenerateRequest(id="r-1", tenant="acme", deadline_ms=2000.0, max_tokens=64, prompt="Why is the sky blue?"),
    InferRequest(prompt="Why is the sky blue?", max_tokens=64),
    InferReply("Because air scatters blue light most.", 8, 2, 412.5),
    CancelReply("r-1", True),
    *LEASE_EXAMPLES,
    WorkerStatus(
        name="worker-0",
        engine="simulated",
        models=["sim"],
        slots=8,
        queue_size=8,
        running=3,
        waiting=0,
        draining=False,
        step_ms=20.0,
        prefill_ms_per_token=0.05,
        kv_tokens=None,
        kv_free_tokens=0,
        full_step_ms=28.0,
    ),
)
GARBAGE = b'{"event":"done","finish_reason":\xff\xfe'  # sent in place of the last event when the garbage fault applies
MAX_STOP_CHARS = 256
MAX_TENANT_CHARS = 128


class WorkerApi:
    """The routes of one worker."""

    def __init__(
        self,
        loop: EngineLoop,
        metrics: WorkerMetrics,
        *,
        worker_name: str,
        model: str,
        infer_deadline_s: float,
        faults: Faults,
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = loop
        self._leaving = leaving  # true: still serving, but `/status` reports draining
        self._faults = faults
        self._metrics = metrics
        self._worker_name = worker_name
        self._model = model
        self._infer_deadline_ms = min(infer_deadline_s * 1000, 120_000)
        self._infer_numbers = count(1)
        self._encode: Callable[[object], bytes] = msgspec.json.Encoder().encode

    def add_to(self, api: FastAPI) -> None:
        """Add `/generate`, `/cancel/{id}`, `/status` and the leases, which routers call, and `/infer`."""
        generated = describe("One answer, as newline-delimited events or as its last event.", request=GenerateRequest)
        generated["responses"][200]["content"] = {NDJSON.decode(): {"schema": {"type": "string"}}}
        api.add_api_route("/generate", native(self.generate), methods=["POST"], **generated)
        inferred = describe("One answer in plain JSON, for use with curl.", request=InferRequest, reply=InferReply)
        api.add_api_route("/infer", self.infer, methods=["POST"], **inferred)
        cancelled = describe("Cancel a queued or running request.", reply=CancelReply, refusals=())
        api.add_api_route("/cancel/{id}", self.cancel, methods=["POST"], **cancelled)
        shown = describe("Capacity and speed of this worker.", reply=WorkerStatus, refusals=(Outcome.NO_CAPACITY,))
        api.add_api_route("/status", self.status, methods=["GET"], **shown)
        add_lease_routes(api, self._loop.lending)

    def ready(self) -> Readiness:
        """Ready while the engine loop runs. A full worker is ready: it rejects at once with `yield`."""
        name = self._loop.executor.name
        detail: dict[str, object] = {"worker": self._worker_name, "engine": name, "model": self._model}
        return Readiness(self._loop.alive, detail)

    async def generate(self, exchange: Exchange) -> None:
        """POST /generate: stream an answer as events, or send it whole as its last event."""
        job = await self._admit(exchange, _read_generate)
        try:
            await (self._send_stream if job.sequence.request.stream else self._send_whole)(exchange, job)
            if exchange.complete and isinstance(job.stream.ending, Done):
                job.loan.grant = None  # the last event carried it
        finally:
            self._loop.abandon(job)  # no effect if the job has ended
            self._loop.lending.push_rest(job.loan)

    async def infer(self, exchange: Call) -> Response:
        """POST /infer: one answer as plain JSON, for use with curl."""
        job = await self._admit(exchange, self._read_infer)
        try:
            text, done = await _whole(job)
        finally:
            self._loop.abandon(job)
        _log(exchange, job)
        return json_answer(InferReply(text, done.usage.completion_tokens, done.batch_size, done.timings.total_ms))

    async def cancel(self, id: str) -> Response:
        """POST /cancel/{id}: `cancelled` is true if the request was queued or running here."""
        return json_answer(CancelReply(id, self._loop.cancel(id)))

    async def status(self) -> Response:
        """GET /status: capacity and speed, from which the router initializes its estimates. 503 without an engine."""
        loop, executor = self._loop, self._loop.executor
        loop.check_engine()
        expected, step_s, kv_tokens = executor.expected, loop.pace.step_s, executor.kv_tokens
        reply = WorkerStatus(
            name=self._worker_name, engine=executor.name, models=[self._model], slots=executor.slots,
            queue_size=loop.queue_size, running=loop.running, waiting=loop.waiting,
            draining=loop.draining or self._leaving(),
            step_ms=round(expected.step_ms if step_s is None else step_s * 1000, 3),
            prefill_ms_per_token=round(expected.prefill_ms_per_token, 6),
            kv_tokens=kv_tokens,
            kv_free_tokens=max(0, loop.free_tokens),
            full_step_ms=round(expected.step_ms, 3),
        )  # fmt: skip
        return json_answer(reply)

    async def _admit(self, exchange: Exchange, read: Callable[[bytes], GenerateRequest]) -> Job:
        """Read a request and submit it. A request rejected here never becomes a job, so it is counted here."""
        try:
            request = read(exchange.body)
            check(request, self._model)
            exchange.log["tenant"] = request.tenant
            job = await self._loop.submit(request)
        except WeirError as refusal:
            self._metrics.requests[refusal.outcome].inc()
            raise
        exchange.on_gone(partial(self._loop.abandon, job))
        return job

    def _read_infer(self, body: bytes) -> GenerateRequest:
        infer = decode(body, InferRequest)
        return GenerateRequest(
            id=f"infer-{next(self._infer_numbers)}", tenant=infer.tenant, deadline_ms=self._infer_deadline_ms,
            max_tokens=infer.max_tokens, prompt=infer.prompt, stream=False,
        )  # fmt: skip

    async def _send_stream(self, exchange: Exchange, job: Job) -> None:
        """Send all pending tokens in one write; the last event goes with the last token."""
        texts = await job.stream.take()
        if not texts and isinstance(job.stream.ending, Dropped):
            raise _refused(job.stream.ending)
        await exchange.start(200, NDJSON)
        broken = self._faults.garbage_now()
        while True:
            lines = [self._encode(Token(text)) for text in texts]
            ending = job.stream.ending
            if ending is not None:
                lines.append(GARBAGE if broken else self._encode(_last_event(ending, job)))
            await exchange.write(b"\n".join(lines) + b"\n")
            if ending is not None:
                break
            texts = await job.stream.take()
        _log(exchange, job)
        await exchange.end()

    async def _send_whole(self, exchange: Exchange, job: Job) -> None:
        text, done = await _whole(job)
        _log(exchange, job)
        whole = msgspec.structs.replace(done, text=text, lease=_grant_of(job))
        line = GARBAGE if self._faults.garbage_now() else self._encode(whole)
        await exchange.reply(200, line + b"\n", content_type=NDJSON)


def _read_generate(body: bytes) -> GenerateRequest:
    return decode(body, GenerateRequest, LONG)


def check(request: GenerateRequest, model: str) -> None:
    """Check what the wire type cannot express. Raises BadInput or NoSuchModel."""
    if (request.prompt is None) == (request.messages is None):
        raise BadInput("prompt: give exactly one of prompt and messages", "prompt")
    if request.prompt == "":
        raise BadInput("prompt: must not be empty", "prompt")
    if request.model not in (None, model):
        raise NoSuchModel(str(request.model))
    if not 1 <= len(request.tenant) <= MAX_TENANT_CHARS:
        raise BadInput(f"tenant: must have 1 to {MAX_TENANT_CHARS} characters", "tenant")
    for index, stop in enumerate(request.stop):
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            name = f"stop[{index}]"
            raise BadInput(f"{name}: a stop string must have 1 to {MAX_STOP_CHARS} characters", name)


async def _whole(job: Job) -> tuple[str, Done]:
    """Wait for the whole answer. Raises Refused if the request ended without one."""
    texts = await job.stream.take()
    ending = job.stream.ending
    if isinstance(ending, Done):
        return "".join(texts), ending
    raise _refused(ending or Dropped(Outcome.INTERNAL, "the answer has no ending"))


def _refused(dropped: Dropped) -> Refused:
    refused = Refused(dropped.outcome, dropped.message)
    refused.code = dropped.code
    return refused


def _last_event(ending: Done | Dropped, job: Job) -> Done | Failed:
    if isinstance(ending, Dropped):
        return Failed(ending.code, ending.message)
    grant = _grant_of(job)
    return ending if grant is None else msgspec.structs.replace(ending, lease=grant)


def _grant_of(job: Job) -> LeaseGrant | None:
    """The grant of the request's end, for its event `done`."""
    return None if job.loan.grant is None else wire_grant(job.loan.grant)


def _log(exchange: Exchange, job: Job) -> None:
    outcome = job.ticket.outcome or Outcome.INTERNAL
    exchange.log["outcome"] = outcome.value
    exchange.log["prompt_tokens"] = job.sequence.prompt_tokens
    exchange.log["completion_tokens"] = job.sequence.completion_tokens
    exchange.log["batch_size"] = job.batch_size
    if exchange.trace is not None:
        steps(exchange.trace, job, asyncio.get_running_loop().time())
