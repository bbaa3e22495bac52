"""The bench's HTTP face. It is for the router and for `weir storm`, on loopback or in the lab's own network.

    GET    /storm                  what goes on, what there is, and what the last runs came to
    POST   /storm                  begin a run
    DELETE /storm                  stop it
    GET    /storm/run?run=ID       everything that is kept of one
    GET    /storm/report?run=ID    the same as a page of its own; with=ID sets another run beside it, save=1 saves it

A browser sends `Origin` with whatever a page of its may change, and no page may set `x-weir-console` for another site
without being asked first: so nobody's visit to a web page starts a storm here.
"""

from __future__ import annotations

import msgspec

from loadtests.storm.bench import StormBench
from loadtests.storm.report import report
from services.contracts.storm import Started, StartRun, Stopped
from services.runtime.errors import BadInput
from services.runtime.http import Exchange, Handler
from services.runtime.query import parameters
from services.runtime.strictjson import decode

HTML = b"text/html; charset=utf-8"
PAGE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        b"frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_encode = msgspec.json.Encoder().encode


def storm_routes(bench: StormBench) -> dict[tuple[str, str], Handler]:
    """(METHOD, path) -> handler."""

    async def state(exchange: Exchange) -> None:
        await exchange.reply(200, _encode(bench.state()))

    async def start(exchange: Exchange) -> None:
        not_for_pages(exchange)
        wish = decode(exchange.body, StartRun)
        await exchange.reply(202, _encode(Started(bench.start(wish))))

    async def stop(exchange: Exchange) -> None:
        not_for_pages(exchange)
        await exchange.reply(200, _encode(Stopped(await bench.stop())))

    async def kept(exchange: Exchange) -> None:
        asked = parameters(exchange.query, ("run",))
        await exchange.reply(200, _encode(bench.kept(_run(asked))))

    async def page(exchange: Exchange) -> None:
        asked = parameters(exchange.query, ("run", "with", "save"))
        first = bench.kept(_run(asked))
        second = bench.kept(asked["with"]) if asked.get("with") else None
        if second is not None and (second is first or second.scenario != first.scenario):
            raise BadInput("with: two runs of one scenario can be compared", "with")
        headers = list(PAGE_HEADERS)
        if asked.get("save") == "1":
            name = f"weir-storm-{first.scenario}-{first.run}.html"
            headers.append((b"content-disposition", b'attachment; filename="%b"' % name.encode("ascii")))
        await exchange.reply(200, report(first, second).encode(), content_type=HTML, headers=headers)

    return {
        ("GET", "/storm"): state,
        ("POST", "/storm"): start,
        ("DELETE", "/storm"): stop,
        ("GET", "/storm/run"): kept,
        ("GET", "/storm/report"): page,
    }


def _run(asked: dict[str, str]) -> str:
    if not asked.get("run"):
        raise BadInput("run: say which, as in ?run=ID", "run")
    return asked["run"]


def not_for_pages(exchange: Exchange) -> None:
    """Refuse what a web page can send. Raises BadInput."""
    if exchange.header(b"origin") is not None or exchange.header(b"x-weir-console") != b"1":
        raise BadInput("storms are begun by the console or by `weir storm`", status=403, code="forbidden")
