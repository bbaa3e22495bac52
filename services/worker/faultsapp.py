"""The worker's metrics listener: /metrics, and for a simulated engine on loopback the faults that are in force.

    GET /faults     what goes wrong on purpose, as JSON
    PUT /faults     {"slow_factor": 4}: from now on this, and nothing that is not named; {} heals

Where more than this machine reaches the listener, or the engine is a real one, the route is not there.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from prometheus_client import CollectorRegistry

from services.runtime.addresses import is_loopback, names_loopback
from services.runtime.errors import BadInput, WeirError
from services.runtime.http import Exchange
from services.runtime.strictjson import decode
from services.runtime.telemetry import MetricsApp
from services.worker.engines.faults import MAX_POISON_CHARS, MAX_SLOW_FACTOR, FaultPlan, Faults


class SetFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PUT /faults; see `engines.faults.FaultPlan`."""

    slow_factor: Annotated[float, Meta(ge=1, le=MAX_SLOW_FACTOR)] = 1.0
    hang_after_tokens: Annotated[int, Meta(ge=0)] = 0
    die_after_answers: Annotated[int, Meta(ge=0)] = 0
    garbage_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    poison: Annotated[str, Meta(max_length=MAX_POISON_CHARS)] = ""


class FaultsApp(MetricsApp):
    """What answers on the metrics listener."""

    def __init__(self, registry: CollectorRegistry, faults: Faults | None, *, host: str) -> None:
        super().__init__(registry)
        self._faults = faults if is_loopback(host) else None

    async def handle(self, exchange: Exchange) -> None:
        if self._faults is None or exchange.path != "/faults" or exchange.method not in ("GET", "PUT"):
            await super().handle(exchange)
            return
        try:
            self._set(self._faults, exchange)
        except WeirError as error:
            exchange.refuse_now(error)
            return
        exchange.reply_now(200, msgspec.json.encode(self._faults.plan))

    def _set(self, faults: Faults, exchange: Exchange) -> None:
        if exchange.header(b"origin") is not None or not names_loopback(exchange.header(b"host")):
            raise BadInput("/faults is not for web pages", status=403, code="forbidden")
        if exchange.method == "PUT":
            asked: dict[str, Any] = msgspec.structs.asdict(decode(exchange.body, SetFaults))
            faults.replace(FaultPlan(**asked))
