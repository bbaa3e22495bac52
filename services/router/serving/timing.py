"""How an answer was made: `Server-Timing` and `x-weir-degraded`, or the field `weir` of a stream."""

from __future__ import annotations

from services.contracts.openai import Timing
from services.router.request import InferenceRequest


def timing(request: InferenceRequest, now: float) -> Timing:
    """The times in milliseconds, and what was cut."""
    inference_s = now - request.dispatched_at if request.dispatched_at else 0.0
    return Timing(
        level=request.level,
        degraded=list(request.cuts),
        queue_ms=round(request.waited_s * 1000, 2),
        retrieval_ms=round(request.found.seconds * 1000, 2) if request.found else 0.0,
        inference_ms=round(inference_s * 1000, 2),
        total_ms=round((now - request.arrived_at) * 1000, 2),
    )


def headers(request: InferenceRequest, now: float | None) -> list[tuple[bytes, bytes]]:
    """`x-weir-degraded` if something was cut, `x-weir-default-max-tokens` if the router set the answer's limit, and
    `Server-Timing` at the end (`now` is None before it).
    """
    found: list[tuple[bytes, bytes]] = []
    cuts = request.cuts
    if cuts:
        found.append((b"x-weir-degraded", ",".join(cuts).encode("ascii")))
    if request.limited_by_default:
        found.append((b"x-weir-default-max-tokens", b"%d" % (request.max_tokens // request.copies)))
    if now is not None:
        found.append((b"server-timing", _server_timing(request, now)))
    return found


def _server_timing(request: InferenceRequest, now: float) -> bytes:
    inference_s = now - request.dispatched_at if request.dispatched_at else 0.0
    retrieval_s = request.found.seconds if request.found else 0.0
    return b"queue;dur=%.2f, retrieval;dur=%.2f, inference;dur=%.2f, total;dur=%.2f" % (
        request.waited_s * 1000, retrieval_s * 1000, inference_s * 1000, (now - request.arrived_at) * 1000,
    )  # fmt: skip
