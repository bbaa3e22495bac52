"""Creates a worker, with its own connection pool, from an entry of the worker list."""

from __future__ import annotations

from services.router.upstreams.call import Upstream
from services.router.upstreams.enginereports import EngineReports
from services.router.upstreams.openai import OpenAIUpstream
from services.router.upstreams.weir import WeirUpstream
from services.router.workers.worker import Worker
from services.router.workers.workersfile import WorkerSpec
from services.runtime.keepalive import Pool

SPARE_CONNECTIONS = 8
"""For probes and cancels, in addition to one for each request in flight."""
DESK_CONNECTIONS = 4
"""For a stream of grants, an ask, and those that end meanwhile."""


def connect(spec: WorkerSpec, max_inflight: int, token: bytes = b"", *, several_routers: bool = False) -> Worker:
    """A worker from its entry. `max_inflight` bounds all requests in flight. Only Weir's own services get `token`.

    With `several_routers` Weir workers lend their slots, and desks those of other servers; slots of a server without a
    desk are not shared.
    """
    shown = token if spec.kind == "weir" else b""
    pool = Pool(spec.url, max_connections=max_inflight + SPARE_CONNECTIONS, token=shown)
    is_shared = several_routers and (spec.kind == "weir" or spec.desk is not None)
    return Worker(spec, _upstream(spec, pool, token), max_limit=max_inflight, is_shared=is_shared)


def _upstream(spec: WorkerSpec, pool: Pool, token: bytes) -> Upstream:
    if spec.kind == "weir":
        return WeirUpstream(pool)
    reports = EngineReports(Pool(root_of(spec.url), max_connections=1)) if spec.metrics else None
    desk = WeirUpstream(Pool(spec.desk, max_connections=DESK_CONNECTIONS, token=token)) if spec.desk else None
    return OpenAIUpstream(
        pool, tuple(spec.models), spec.api_key(),
        allow=frozenset(spec.allow), salted=spec.cache_salt, reports=reports, desk=desk,
    )  # fmt: skip


def root_of(url: str) -> str:
    """Where a server has what is not part of its API: above the API's version."""
    return url.removesuffix("/v1")
