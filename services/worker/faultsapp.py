"""The worker's metrics listener: /metrics, and in a lab the faults of a simulated engine.

    GET /faults      the faults in force, as JSON
    PUT /faults      {"slow_factor": 4}: replace all faults by these; {} removes all
                     {"slow_factor": 4, "for_s": 3}: these for three seconds, then those before
    DELETE /faults   end temporary faults now; permanent ones stay

A temporary fault ends by itself, so the test that set it may die. The route exists only for a simulated engine, on a
loopback listener or with LAB_NETWORK.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Response
from msgspec import Meta
from prometheus_client import CollectorRegistry

from services.core.outcome import Outcome
from services.runtime.addresses import is_loopback, names_loopback
from services.runtime.api import Call, body_of, describe, json_answer, new_api
from services.runtime.asgi import AsgiApp
from services.runtime.errors import BadInput
from services.runtime.http import App
from services.runtime.log import Log
from services.runtime.telemetry import add_metrics
from services.worker.engines.faults import MAX_POISON_CHARS, MAX_SLOW_FACTOR, FaultPlan, Faults

MAX_FOR_S = 600.0


class SetFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PUT /faults; see `engines.faults.FaultPlan`. `for_s` is in seconds, 0: permanent."""

    slow_factor: Annotated[float, Meta(ge=1, le=MAX_SLOW_FACTOR)] = 1.0
    hang_after_tokens: Annotated[int, Meta(ge=0)] = 0
    die_after_answers: Annotated[int, Meta(ge=0)] = 0
    garbage_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    poison: Annotated[str, Meta(max_length=MAX_POISON_CHARS)] = ""
    for_s: Annotated[float, Meta(ge=0, le=MAX_FOR_S)] = 0.0

    def plan(self) -> FaultPlan:
        return FaultPlan(
            self.slow_factor, self.hang_after_tokens, self.die_after_answers, self.garbage_share, self.poison
        )


class Temporary:
    """Temporary faults on top of permanent ones."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._lasting: FaultPlan | None = None
        self._timer: asyncio.TimerHandle | None = None

    def put(self, plan: FaultPlan, for_s: float) -> None:
        """Put these faults in force, for `for_s` seconds; 0: permanently."""
        lasting = self._faults.plan if self._lasting is None else self._lasting
        self._forget()
        if for_s > 0:
            self._lasting = lasting
            self._timer = asyncio.get_running_loop().call_later(for_s, self.heal)
        if plan != self._faults.plan or not for_s:  # a plan that is only prolonged keeps its counts
            self._faults.replace(plan)

    def heal(self) -> None:
        lasting = self._lasting
        self._forget()
        if lasting is not None:
            self._faults.replace(lasting)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._lasting = None


def metrics_listener(
    registry: CollectorRegistry, log: Log, faults: Faults | None, *, host: str, lab_network: bool = False
) -> App:
    """The metrics listener's app, with `/faults` for a simulated engine in a lab."""
    api = new_api(
        "Weir worker, metrics listener",
        "Metrics, and faults on demand in a lab.",
        examples=(SetFaults(slow_factor=8.0, for_s=20.0), FaultPlan(8.0)),
    )
    add_metrics(api, registry)
    if faults is not None and (is_loopback(host) or lab_network):
        _add_faults(api, faults, lab_network)
    return AsgiApp(api, log)


def _add_faults(api: FastAPI, faults: Faults, lab_network: bool) -> None:
    temporary = Temporary(faults)

    async def not_for_pages(exchange: Call) -> None:
        by_name = lab_network or names_loopback(exchange.header(b"host"))
        if exchange.header(b"origin") is not None or not by_name:
            raise BadInput("/faults does not accept requests from web pages", status=403, code="forbidden")

    async def show() -> Response:
        return json_answer(faults.plan)

    async def put(wanted: Annotated[SetFaults, Depends(body_of(SetFaults))]) -> Response:
        temporary.put(wanted.plan(), wanted.for_s)
        return json_answer(faults.plan)

    async def heal() -> Response:
        temporary.heal()
        return json_answer(faults.plan)

    description: dict[str, Any] = {"reply": FaultPlan, "refusals": (Outcome.BAD_INPUT,)}
    for method, endpoint, more in (
        ("GET", show, describe("The faults that are in force.", **description)),
        ("PUT", put, describe("Set faults, temporarily or permanently.", request=SetFaults, **description)),
        ("DELETE", heal, describe("End temporary faults.", **description)),
    ):
        api.add_api_route("/faults", endpoint, methods=[method], dependencies=[Depends(not_for_pages)], **more)
