"""`/documents`: forwards a tenant's own documents to the retrieval service.

A request is identified, takes from its tenant's rate, is bounded in size and time, counted, and settled as any other.
The retrieval service validates documents; its answers are passed on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from urllib.parse import quote_from_bytes

from fastapi import FastAPI

from services.contracts.documents import (
    EITHER,
    PAGE_PARAMETERS,
    DocumentDeleted,
    DocumentList,
    DocumentPut,
    PutDocument,
)
from services.router.rag.prompt import BYTES_PER_TOKEN
from services.router.request import InferenceRequest
from services.router.serving.forwarding import forwarding
from services.router.serving.pipeline import Pipeline
from services.router.serving.timing import headers
from services.runtime.api import JSON, add_native, describe
from services.runtime.http import Exchange
from services.runtime.strictjson import decode

PATH = "/documents/{id:rest}"


def add_documents(api: FastAPI, pipeline: Pipeline) -> None:
    async def serve(exchange: Exchange) -> None:
        await pipeline.live(exchange, partial(_pass_on, pipeline))

    put = describe("Add a document, or replace it.", request=PutDocument, reply=DocumentPut)
    put["responses"][201] = put["responses"][200]
    body = put["openapi_extra"]["requestBody"]["content"][JSON]
    body["schema"] = {"allOf": [body["schema"], {"oneOf": EITHER}]}
    paged = describe("The tenant's documents, by id, in pages.", reply=DocumentList, parameters=PAGE_PARAMETERS)
    for method, path, description in (
        ("GET", "/documents", paged),
        ("PUT", PATH, put),
        ("DELETE", PATH, describe("Remove a document.", reply=DocumentDeleted)),
    ):
        add_native(api, {(method, path): serve}, {path: description})


async def _pass_on(pipeline: Pipeline, exchange: Exchange, request: InferenceRequest) -> None:
    tokens = 0.0
    if exchange.method == "PUT":
        decode(exchange.body, PutDocument)  # a malformed body costs neither rate nor a call
        tokens = float(len(exchange.body) // BYTES_PER_TOKEN)
    async with forwarding(pipeline, exchange, request, "documents", tokens) as trace:
        tenant = request.account
        assert tenant is not None, "the request was identified"
        status, body = await pipeline.retrieval.documents(
            exchange.method.encode("ascii"), _target(exchange), tenant.id, _body(exchange), (*tenant.quota, *trace)
        )
        await exchange.reply(status, body, headers=headers(request, asyncio.get_running_loop().time()))


def _body(exchange: Exchange) -> bytes:
    return exchange.body if exchange.method == "PUT" else b""


def _target(exchange: Exchange) -> bytes:
    """The target as received, with the id escaped anew from the decoded path."""
    if exchange.tail:
        return b"/documents/" + quote_from_bytes(exchange.tail.encode("utf-8", "replace"), safe="").encode("ascii")
    return b"/documents?" + exchange.query if exchange.query else b"/documents"
