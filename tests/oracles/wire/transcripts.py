"""Every transcript, by the name of its file; and the description of the router's API, pinned as it is served."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from loadtests.cluster.loop import run
from services.router.app import build
from tests.oracles.oracle import PINNED, Oracle
from tests.oracles.wire import edge, keyed, refusals, retrieval, routes, services, upstreams
from tests.router.rig import GivenSettings

MADE_BY: Mapping[str, Callable[[], Coroutine[Any, Any, str]]] = {
    "edge-requests.txt": edge.corpus,
    "edge-bounds.txt": edge.bounds,
    "router-answers.txt": routes.answers,
    "router-other-routes.txt": routes.others,
    "router-console.txt": routes.console,
    "router-refused-at-admission.txt": refusals.admission,
    "router-failed-at-workers.txt": refusals.working,
    "router-draining.txt": refusals.leaving,
    "router-wrong-requests.txt": refusals.wrong,
    "router-with-keys.txt": keyed.tenants,
    "router-bound-of-cost.txt": keyed.costs,
    "router-admin.txt": keyed.operator,
    "router-to-openai-worker.txt": upstreams.openai,
    "router-to-weir-worker.txt": upstreams.weir,
    "router-to-retrieval.txt": upstreams.retrieval,
    "worker.txt": services.worker_routes,
    "desk.txt": services.desk_routes,
    "worker-with-token.txt": services.worker_with_token,
    "retrieval.txt": retrieval.searching,
    "retrieval-documents.txt": retrieval.documents,
    "governor.txt": services.governor_lines,
    "governor-bounds.txt": services.governor_bounds,
    "storm-bench.txt": services.storm_bench,
}
OPENAPI = "openapi.json"


def text_of(file: str) -> str:
    """What the code makes of this file now."""
    return described() if file == OPENAPI else run(MADE_BY[file]())


def described() -> str:
    """The router's API as its application describes it."""
    service = build(GivenSettings()).listener.app
    return json.dumps(service.api.openapi(), indent=1) + "\n"


def texts() -> dict[str, str]:
    """Every file."""
    return {file: text_of(file) for file in (*MADE_BY, OPENAPI)}


ORACLE = Oracle("wire", PINNED / "wire", texts)
