"""The bench's HTTP routes, for the router and `weir storm`, on loopback or in the lab's network.

    GET    /storm                  the current run, the scenarios and the results of the last runs
    POST   /storm                  start a run
    DELETE /storm                  stop it
    GET    /storm/run?run=ID       all results of one run
    GET    /storm/report?run=ID    the same as a page; with=ID compares another run, save=1 downloads it

A browser sends `Origin` with every state-changing request, and a page cannot send `x-weir-console` to another site
without a preflight. So no web page can start a storm.
"""

from __future__ import annotations

from fastapi import FastAPI, Response

from loadtests.storm.bench import StormBench
from loadtests.storm.report import report
from services.contracts.storm import Run, Started, StartRun, State, Stopped
from services.runtime.api import Call, describe, json_answer
from services.runtime.errors import BadInput
from services.runtime.http import Exchange
from services.runtime.query import parameters
from services.runtime.strictjson import decode

EXAMPLES = (State, StartRun("burst", {"load": 4.0}), Started("r-1"), Stopped("r-1"), Run)
RUN = ({"name": "run", "in": "query", "required": True, "schema": {"type": "string"}},)
OF_A_REPORT = (
    {"name": "with", "in": "query", "schema": {"type": "string"}},
    {"name": "save", "in": "query", "schema": {"type": "string", "enum": ["0", "1"]}},
)
PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def add_storm(api: FastAPI, bench: StormBench) -> None:
    async def state() -> Response:
        return json_answer(bench.state())

    async def start(exchange: Call) -> Response:
        not_for_pages(exchange)
        return json_answer(Started(bench.start(decode(exchange.body, StartRun))), status=202)

    async def stop(exchange: Call) -> Response:
        not_for_pages(exchange)
        return json_answer(Stopped(await bench.stop()))

    async def kept(exchange: Call) -> Response:
        asked = parameters(exchange.query, ("run",))
        return json_answer(bench.kept(_run(asked)))

    async def page(exchange: Call) -> Response:
        asked = parameters(exchange.query, ("run", "with", "save"))
        first = bench.kept(_run(asked))
        second = bench.kept(asked["with"]) if asked.get("with") else None
        if second is not None and (second is first or second.scenario != first.scenario):
            raise BadInput("with: two runs of one scenario can be compared", "with")
        headers = dict(PAGE_HEADERS)
        if asked.get("save") == "1":
            headers["content-disposition"] = f'attachment; filename="weir-storm-{first.scenario}-{first.run}.html"'
        return Response(report(first, second), media_type="text/html; charset=utf-8", headers=headers)

    for method, path, endpoint, options in (
        ("GET", "/storm", state, describe("What runs, what there is, and the last runs.", reply=State)),
        ("POST", "/storm", start, describe("Begin a run.", request=StartRun, reply=Started, status=202)),
        ("DELETE", "/storm", stop, describe("Stop it.", reply=Stopped)),
        ("GET", "/storm/run", kept, describe("Everything that is kept of one run.", reply=Run, parameters=RUN)),
        ("GET", "/storm/report", page, describe("The same as a page.", parameters=(*RUN, *OF_A_REPORT))),
    ):
        api.add_api_route(path, endpoint, methods=[method], **options)


def _run(asked: dict[str, str]) -> str:
    if not asked.get("run"):
        raise BadInput("run: say which, as in ?run=ID", "run")
    return asked["run"]


def not_for_pages(exchange: Exchange) -> None:
    """Reject requests that a web page can send. Raises BadInput."""
    if exchange.header(b"origin") is not None or exchange.header(b"x-weir-console") != b"1":
        raise BadInput("storms are begun by the console or by `weir storm`", status=403, code="forbidden")
