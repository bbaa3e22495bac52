"""FastAPI applications of this project: errors as problem bodies, the OpenAPI document, its pages `/docs` and `/redoc`.

FastAPI does not know the wire types, which are msgspec structs: `body_of(T)` is a dependency that decodes a body, and
`describe` gives a route its OpenAPI entry. A handler raises WeirError, which becomes the problem body.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from inspect import cleandoc
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.dependencies import models
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Route, compile_path

from services.contracts.openai import EXACT
from services.contracts.problem import Problem
from services.core.outcome import Outcome
from services.runtime.asgi import EXCHANGE, ClientLeft
from services.runtime.errors import REFUSALS, BadInput, Refused, WeirError, problem
from services.runtime.http import Exchange, Handler
from services.runtime.strictjson import decode

T = TypeVar("T")

JSON = "application/json"
SCHEMAS = "#/components/schemas/"
PRINTABLE = {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": r"^[^\u0000-\u001f\u007f-\u009f\ufffd]+$"}
"""The schema of an id in a path: at most 1,024 bytes of UTF-8 without control characters."""
EVENT = {
    "type": "object",
    "description": "Each event of the stream. Comments may stand between events.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
ASSETS = {  # files of the two pages, with their content types
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "redoc.standalone.js": "text/javascript",
}
_INTERNAL = "an internal error; the log has its id"


class _Rest(Convertor[str]):
    """The rest of a path, as `{name:rest}`. Starlette's `path` stops at a line break, which an id may contain."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("rest", _Rest())


async def exchange_of(request: Request) -> Exchange:
    """A dependency: the exchange behind a request, for its log fields and for the client's disconnect."""
    exchange: Exchange = request.scope[EXCHANGE]
    return exchange


Call = Annotated[Exchange, Depends(exchange_of)]


def native(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint whose handler answers the exchange itself. `tail` is the path parameter; an empty one is 404."""

    async def endpoint(request: Request) -> Response:
        exchange: Exchange = request.scope[EXCHANGE]
        exchange.tail = next(iter(request.path_params.values()), "")
        if request.path_params and not exchange.tail:
            raise HTTPException(404)
        await handler(exchange)
        return _Answered()

    return endpoint


def add_native(
    api: FastAPI, routes: Mapping[tuple[str, str], Handler], description: Mapping[str, dict[str, Any]]
) -> None:
    """Add routes whose handlers answer the exchange themselves: (METHOD, path) -> handler.

    `description` maps a path to its OpenAPI entry (`describe`). A path without one is left out of the document.
    """
    for (method, path), handler in routes.items():
        entry = description.get(path)
        entry = {"response_model": None, "include_in_schema": False} if entry is None else _with_path(entry, path)
        api.add_api_route(path, native(handler), methods=[method], **entry)


def _with_path(description: dict[str, Any], path: str) -> dict[str, Any]:
    """Add the path parameters, which FastAPI would read from the signature of an ordinary endpoint, as printable."""
    names = compile_path(path)[2]
    named = [{"name": name, "in": "path", "required": True, "schema": PRINTABLE} for name in names]
    extra = description["openapi_extra"] or {}
    parameters = [*named, *extra.get("parameters", ())]
    return {
        **description,
        "openapi_extra": {**extra, "parameters": parameters} if parameters else description["openapi_extra"],
    }


def forget_endpoints() -> None:
    """Clear FastAPI's caches, which would keep the thousands of applications that tests and simulations build."""
    for name, known in vars(models).items():
        if name.startswith("_") and hasattr(known, "cache_clear"):
            known.cache_clear()


OF_THE_EDGE = {
    401: "invalid_api_key",
    403: "forbidden",
    408: "request_timeout",
    413: "request_too_large",
    414: "url_too_long",
    415: "unsupported_encoding",
    421: "misdirected_request",
    431: "headers_too_large",
    501: "unsupported_transfer_encoding",
}
"""Codes by status that the HTTP protocol and the head checks answer on any route, before a handler."""


class _Answered(Response):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send nothing."""


def body_of(type_: type[T]) -> Callable[[Request], Any]:
    """A dependency that decodes the body as this wire type. Raises BadInput naming the field."""

    async def decoded(request: Request) -> T:
        exchange: Exchange = request.scope[EXCHANGE]
        return decode(exchange.body, type_)

    return decoded


def json_answer(value: object, *, status: int = 200, media_type: str = JSON) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=media_type)


def new_api(
    title: str, description: str, *, examples: Iterable[object] = (), instead: Mapping[str, str] | None = None
) -> FastAPI:
    """An application with this project's errors and pages.

    `examples` holds one instance of each wire type that the routes name, or the type itself where an example says
    little. `instead` maps the first two parts of a path that has no route, or the first, to a sentence for its 404:
    what to use instead.
    """
    api = FastAPI(
        title=title,
        description=description,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=_operation_id,
    )
    api.router.redirect_slashes = False
    api.add_exception_handler(WeirError, _problem_of)
    api.add_exception_handler(HTTPException, partial(_http_problem_of, instead=instead or {}))
    api.add_exception_handler(Exception, _internal_problem_of)
    _add_pages(api, [*examples, _problem_example(Outcome.YIELD)])
    return api


def _operation_id(route: APIRoute) -> str:
    return re.sub(r"\W+", "_", f"{'_'.join(sorted(route.methods or ())).lower()}{route.path_format}").rstrip("_")


def describe(
    summary: str,
    *,
    request: type | None = None,
    reply: type | None = None,
    status: int = 200,
    refusals: Collection[Outcome] = tuple(REFUSALS),
    parameters: Sequence[dict[str, Any]] = (),
    streams: bool = False,
) -> dict[str, Any]:
    """The arguments of `add_api_route` that describe a route. `refusals` are the outcomes it may answer with; it
    `streams` if the answer may be server-sent events.
    """
    extra: dict[str, Any] = {"parameters": list(parameters)} if parameters else {}
    if request is not None:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    answer: dict[str, Any] = {"description": "The answer"}
    if reply is not None:
        answer["content"] = {JSON: {"schema": _ref(reply)}}
    if streams:
        answer["content"] = {**answer.get("content", {}), "text/event-stream": {"schema": EVENT}}
    return {
        "summary": summary,
        "response_model": None,
        "response_class": Response,
        "status_code": status,
        "responses": {status: answer, **_refusals(refusals)},
        "openapi_extra": extra or None,
    }


def _refusals(outcomes: Collection[Outcome]) -> dict[int | str, dict[str, Any]]:
    by_status: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome is not Outcome.CLIENT_GONE:
            by_status.setdefault(REFUSALS[outcome].status, []).append(outcome)
    content = {JSON: {"schema": _ref(Problem)}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": codes, "content": content} for status, codes in OF_THE_EDGE.items()
    }
    return found | {status: _refusal(of_status) for status, of_status in sorted(by_status.items())}


def _refusal(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    examples = {str(outcome): {"value": _plain(_problem_example(outcome))} for outcome in outcomes}
    content = {JSON: {"schema": _ref(Problem), "examples": examples}}
    return {"description": ", ".join(outcomes), "content": content}


@cache
def _problem_example(outcome: Outcome) -> Problem:
    _, _, body = problem(Refused(outcome, str(outcome).replace("_", " "), retry_hint_ms=250))
    return msgspec.json.decode(body, type=Problem)


def _plain(example: object) -> Any:
    found = msgspec.to_builtins(example)
    return {name: value for name, value in found.items() if value is not None}


def _ref(type_: type) -> dict[str, str]:
    return {"$ref": SCHEMAS + type_.__name__}


# ---- errors


async def _problem_of(request: Request, error: Exception) -> Response:
    assert isinstance(error, WeirError)
    exchange: Exchange = request.scope[EXCHANGE]
    exchange.log.setdefault("outcome", error.outcome)
    status, headers, body = problem(error)
    return Response(body, status, {name.decode(): value.decode("latin-1") for name, value in headers}, JSON)


async def _http_problem_of(request: Request, error: Exception, instead: Mapping[str, str]) -> Response:
    """Errors of the framework: 404 for an unknown path, 405 with Allow for another method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods_at(request)))
        wrong = BadInput(f"{request.method} is not allowed here; use {allowed}", status=405, code="method_not_allowed")
        wrong.headers = [(b"allow", allowed.encode("ascii"))]
    elif error.status_code == 404:
        path = request.scope["path"]
        nothing = "; ".join((f"there is nothing at {path[:200]}", *_instead_of(path, instead)))
        wrong = BadInput(nothing, status=404, code="not_found")
    else:
        wrong = BadInput(str(error.detail), status=error.status_code)
    return await _problem_of(request, wrong)


def _instead_of(path: str, instead: Mapping[str, str]) -> list[str]:
    parts = path.split("/", 3)
    found = instead.get("/".join(parts[:3])) or instead.get("/".join(parts[:2]))
    return [found] if found else []


def _methods_at(request: Request) -> set[str]:
    """The methods of every route at this path; the framework names those of the first route only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    fitting = [route for route in routes if route.path_regex.match(request.scope["path"])]
    return {method for route in fitting for method in route.methods or ()}


async def _internal_problem_of(request: Request, error: Exception) -> Response:
    """The framework raises the error again after this answer, and `Service` logs it."""
    if isinstance(error, ClientLeft):
        raise error
    return await _problem_of(request, WeirError(Outcome.INTERNAL, _INTERNAL))


# ---- the description and its pages


def _add_pages(api: FastAPI, examples: Sequence[object]) -> None:
    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _document(api, examples)
        return api.openapi_schema

    async def openapi() -> Response:
        body = msgspec.json.encode(document())
        return Response(body, media_type=JSON, headers={"content-security-policy": NO_PAGE, **SAFE})

    async def asset(name: str) -> Response:
        if name not in ASSETS:
            raise HTTPException(404)
        data = resources.files("fastapi_offline").joinpath("static", name).read_bytes()
        return Response(data, media_type=ASSETS[name], headers={"cache-control": "max-age=86400", **SAFE})

    swagger = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=api.title,
        swagger_js_url="/docs/assets/swagger-ui-bundle.js",
        swagger_css_url="/docs/assets/swagger-ui.css",
        swagger_favicon_url="data:,",
    ).body
    redoc = get_redoc_html(
        openapi_url="/openapi.json",
        title=api.title,
        redoc_js_url="/docs/assets/redoc.standalone.js",
        redoc_favicon_url="data:,",
        with_google_fonts=False,
    ).body
    api.openapi = document  # type: ignore[method-assign]  # FastAPI documents this as the way to extend it
    for path, endpoint in (
        ("/openapi.json", openapi),
        ("/docs", _page(bytes(swagger))),
        ("/redoc", _page(bytes(redoc))),
        ("/docs/assets/{name}", asset),
    ):
        api.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False, response_model=None)


def _document(api: FastAPI, examples: Sequence[object]) -> dict[str, Any]:
    """FastAPI's document of the routes with msgspec's schemas of the wire types. A key is optional without tenants."""
    found = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
    for operation in (each for methods in found.get("paths", {}).values() for each in methods.values()):
        if "HTTPValidationError" in str(operation["responses"].get("422")):
            del operation["responses"]["422"]  # FastAPI's own, for path parameters; a string is always valid
    shown = [example for example in examples if not isinstance(example, type)]
    types = [example if isinstance(example, type) else type(example) for example in examples]
    _, components = msgspec.json.schema_components(types, ref_template=SCHEMAS + "{name}")
    schemas = {name: _exact(schema) for name, schema in components.items()}
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    for example in shown:
        schemas[type(example).__name__]["examples"] = [_plain(example)]
    bearer = {"type": "http", "scheme": "bearer"}
    return found | {
        "components": {"schemas": schemas, "securitySchemes": {"key": bearer}},
        "security": [{}, {"key": []}],
    }


def _exact(schema: Any) -> Any:
    """The schema with each part that has `EXACT` replaced by it."""
    if isinstance(schema, dict):
        return schema[EXACT] if EXACT in schema else {key: _exact(value) for key, value in schema.items()}
    return [_exact(each) for each in schema] if isinstance(schema, list) else schema


def _page(html: bytes) -> Callable[[], Any]:
    headers = {"content-security-policy": _policy(html.decode()), **SAFE}

    async def page() -> Response:
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)

    return page


NO_PAGE = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def _policy(html: str) -> str:
    """A content security policy: only this page's own scripts run, and no other host is contacted."""
    scripts = [after.partition("</script>")[0] for after in html.split("<script>")[1:]]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
