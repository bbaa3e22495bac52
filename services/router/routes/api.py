"""The public routes: the hot ones, which `Pipeline` answers itself, and those of the FastAPI application."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI, Response
from starlette.responses import RedirectResponse

from services.contracts.answer import AskReply, AskRequest
from services.contracts.openai import (
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    TextCompletion,
)
from services.router.parsing.parsers import Parser, parse_ask, parse_chat, parse_completion
from services.router.routes.documents import add_documents
from services.router.routes.embeddings import embed
from services.router.routes.examples import headers_of
from services.router.serving.pipeline import Pipeline
from services.runtime.api import Call, add_native, describe, json_answer
from services.runtime.clock import unix_seconds
from services.runtime.errors import BadInput, NoSuchModel
from services.runtime.http import Handler

MODEL = "/v1/models/{id:rest}"
_NO_V1 = "the base_url of an OpenAI client ends in /v1 here"
INSTEAD = {
    "/v1": "the routes of OpenAI's API here are /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models",
    "/v1/responses": "OpenAI's Responses API is not served: use POST /v1/chat/completions (in openai: "
    "client.chat.completions; in langchain-openai: use_responses_api=False)",
    "/v1/messages": "Anthropic's API is not served: use POST /v1/chat/completions with an OpenAI client",
    "/v1/v1": "the base_url of this client ends before /v1",
    "/chat/completions": _NO_V1,
    "/completions": _NO_V1,
    "/embeddings": _NO_V1,
    "/models": _NO_V1,
    "/responses": _NO_V1,
}
"""What the 404 of a path says that clients of the field ask for (`new_api`)."""
Routes = Mapping[tuple[str, str], Handler]


def _described(max_deadline_ms: float) -> dict[str, dict[str, Any]]:
    """The descriptions of the hot routes."""
    hot = (
        ("/ask", "Answer a question from the tenant's documents.", AskRequest, AskReply),
        ("/v1/chat/completions", "OpenAI chat completions, plain or streamed.", ChatRequest, ChatCompletion),
        ("/v1/completions", "OpenAI text completions, plain or streamed.", CompletionRequest, TextCompletion),
    )
    parameters = headers_of(max_deadline_ms)
    return {
        path: describe(summary, request=request, reply=reply, parameters=parameters, streams=True)
        for path, summary, request, reply in hot
    }


PARSERS: dict[str, Parser] = {
    "/ask": parse_ask,
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
}


def hot_routes(pipeline: Pipeline) -> Routes:
    """(METHOD, path) -> handler. A rejected request ends without a task of its own."""
    return {
        ("POST", path): partial(pipeline.live, work=partial(pipeline.answer, parse)) for path, parse in PARSERS.items()
    }


def add_routes(api: FastAPI, pipeline: Pipeline, hot: Routes) -> None:
    """Add every public route. The hot ones are only described here; the service answers them before the application."""
    add_native(api, hot, _described(pipeline.settings.max_deadline_ms))
    description = describe(
        "Vectors, from a server that serves the model, else by the retrieval service's embedder.",
        request=EmbeddingsRequest,
    )
    add_native(api, {("POST", "/v1/embeddings"): partial(embed, pipeline)}, {"/v1/embeddings": description})
    add_documents(api, pipeline)

    async def models(exchange: Call) -> Response:
        tenant = pipeline.tenants.identify(exchange.header, None)
        served = [_shown(model) for model in pipeline.dispatcher.fleet.models if tenant.allows(model)]
        return json_answer({"object": "list", "data": served})

    async def model(exchange: Call, id: str) -> Response:
        if not id:
            raise BadInput("there is nothing at /v1/models/", status=404, code="not_found")
        tenant = pipeline.tenants.identify(exchange.header, None)
        if id not in pipeline.dispatcher.fleet.models or not tenant.allows(id):
            raise NoSuchModel(id)
        return json_answer(_shown(id))

    async def front() -> Response:
        return RedirectResponse("/docs")

    description = describe("The models that the tenant may use and some worker serves; the first is the default.")
    api.add_api_route("/v1/models", models, methods=["GET"], **description)
    api.add_api_route(MODEL, model, methods=["GET"], **describe("One of these models; 404 for any other."))
    api.add_api_route("/", front, methods=["GET"], include_in_schema=False, response_model=None)


def _shown(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": unix_seconds(), "owned_by": "weir"}
