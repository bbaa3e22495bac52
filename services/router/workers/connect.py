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


def connect(spec: WorkerSpec, max_inflight: int, token: bytes = b"", *, several_routers: bool = False) -> Worker:
    """A worker from its entry. `max_inflight` bounds all requests in flight. Only Weir workers get `token`.

    With `several_routers` Weir workers lend their slots; those of other servers are not shared.
    """
    shown = token if spec.kind == "weir" else b""
    pool = Pool(spec.url, max_connections=max_inflight + SPARE_CONNECTIONS, token=shown)
    is_shared = several_routers and spec.kind == "weir"
    return Worker(spec, _upstream(spec, pool), max_limit=max_inflight, is_shared=is_shared)


def _upstream(spec: WorkerSpec, pool: Pool) -> Upstream:
    if spec.kind == "weir":
        return WeirUpstream(pool)
    reports = EngineReports(Pool(root_of(spec.url), max_connections=1)) if spec.metrics else None
    return OpenAIUpstream(
        pool, tuple(spec.models), spec.api_key(),
        allow=frozenset(spec.allow), salted=spec.cache_salt, reports=reports,
    )  # fmt: skip


def root_of(url: str) -> str:
    """Where a server has what is not part of its API: above the API's version."""
    return url.removesuffix("/v1")
