"""A request that another service answers: it has a tenant, a rate and a deadline, and no slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.router.request import InferenceRequest
from services.router.serving.pipeline import Pipeline, stop_when_gone
from services.router.telemetry import spans
from services.runtime.errors import Refused
from services.runtime.http import Exchange
from services.runtime.tracing import Headers


@asynccontextmanager
async def forwarding(
    pipeline: Pipeline, exchange: Exchange, request: InferenceRequest, span: str, tokens: float
) -> AsyncIterator[Headers]:
    """Identify the request and take `tokens` from its tenant's rate, given back if that service refuses.

    Yields the trace headers. Raises WeirError as `Pipeline.introduce`, Refused by the rate, and TimeoutError at the
    deadline or after HTTP_TIMEOUT_S.
    """
    tenant = pipeline.introduce(exchange, request, None)
    stop_when_gone(exchange)
    refusal = pipeline.reserve(exchange.read_at, tenant, tokens)
    if refusal is not None:
        raise refusal
    limit = request.arrived_at + pipeline.settings.http_timeout_s
    async with asyncio.timeout_at(min(request.deadline, limit)):
        headers, _ = spans.calling(request.trace, span, asyncio.get_running_loop().time())
        try:
            yield headers
        except Refused:
            if tenant.rate is not None:
                tenant.rate.give_back(exchange.read_at, tokens)
            raise
