"""`/health` answers while the event loop runs; `/health/ready` says whether the service should get requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import FastAPI, Response

from services.runtime.api import describe, json_answer
from services.runtime.drain import Drain

LIVE, READY = "/health", "/health/ready"
HEALTH_ROUTES = (LIVE, READY)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service can work. `detail` is added to the body of /health/ready."""

    ok: bool
    detail: dict[str, object] = field(default_factory=dict)


def add_health(api: FastAPI, name: str, ready: Callable[[], Readiness], drain: Drain) -> None:
    """Add both routes. /health/ready is 200 or 503 by `ready`, and 503 once the drain is announced."""

    async def live() -> Response:
        return json_answer({"status": "ok", "service": name})

    async def readiness() -> Response:
        found = ready()
        ok = found.ok and not drain.announced
        state = "ready" if ok else "draining" if drain.announced else "not ready"
        return json_answer({"status": state, "service": name, **found.detail}, status=200 if ok else 503)

    api.add_api_route(LIVE, live, methods=["GET"], **describe("Liveness: the event loop responds.", refusals=()))
    description = describe("Readiness: 503 while the service cannot take requests, or drains.", refusals=())
    description["responses"][503] = {"description": "Not ready, or draining"}
    api.add_api_route(READY, readiness, methods=["GET"], **description)
