"""The description of a service's API is a valid OpenAPI document whose references all lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from openapi_spec_validator import validate

from services.contracts.documents import PutDocument
from services.contracts.openai import EXACT, MAX_IDS, MAX_PROMPTS
from services.retrieval.documentinput import content_of
from services.router.app import build as router
from services.router.parsing.parsers import parse_completion, parse_embeddings
from services.runtime.errors import BadInput
from services.runtime.service import Service
from services.worker.app import build as worker
from services.worker.config import WorkerSettings
from tests.router.rig import GivenSettings


@pytest.mark.parametrize("name", ["router", "worker"])
def test_the_description_is_valid_and_every_reference_leads_somewhere(name: str) -> None:
    process = router(GivenSettings()) if name == "router" else worker(WorkerSettings())
    service = process.listener.app  # type: ignore[attr-defined]
    assert isinstance(service, Service)
    document = service.api.openapi()
    validate(document)
    named = set(re.findall(r"#/components/schemas/([\w.]+)", repr(document)))
    assert named
    assert named <= set(document["components"]["schemas"])


@cache
def described(**settings: Any) -> dict[str, Any]:
    """For reading: it is made once for equal settings."""
    service = router(GivenSettings(**settings)).listener.app  # type: ignore[attr-defined]
    document: dict[str, Any] = service.api.openapi()
    return document


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, told) for path, methods in document["paths"].items() for method, told in methods.items()]


def test_each_route_names_what_the_edge_may_answer_before_it() -> None:
    for path, method, told in operations(described()):
        assert not path.startswith(("/v1", "/ask", "/documents")) or "413" in told["responses"], (method, path)


@pytest.mark.parametrize("path", ["/ask", "/v1/chat/completions", "/v1/completions"])
def test_an_answer_may_be_json_or_a_stream_of_events(path: str) -> None:
    content = described()["paths"][path]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    event = Draft202012Validator(content["text/event-stream"]["schema"])
    assert event.is_valid({"event": "token", "data": "{}"})
    assert not event.is_valid({"event": "token"})


def test_the_longest_deadline_of_this_router_is_in_its_description() -> None:
    parameters = described(max_deadline_ms=60_000)["paths"]["/ask"]["post"]["parameters"]
    longest = {one["name"]: one["schema"].get("maximum") for one in parameters}
    assert longest["X-Weir-Deadline-Ms"] == longest["X-Weir-TTFT-Ms"] == 60_000


def test_what_replaces_a_schema_is_no_part_of_the_document() -> None:
    assert EXACT not in repr(described())


LISTS: list[Any] = [
    "a", "", [], [""], ["a"] * MAX_PROMPTS, ["a"] * (MAX_PROMPTS + 1), [1] * (MAX_IDS - 8), [1] * (MAX_IDS + 1),
    [[1]] * MAX_PROMPTS, [[1]] * (MAX_PROMPTS + 1), ["a", 1], [1, "a"], [[1], "a"], [[]], [1.5], None, {}, [None],
    [["a"]],
]  # fmt: skip


def each_object_once(validator: Any, items: Any, given: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """The keyword `items`, for lists of a million references to one object, which takes seconds object by object."""
    assert "prefixItems" not in schema
    once = list({id(one): one for one in given}.values()) if isinstance(given, list) else given
    yield from Draft202012Validator.VALIDATORS["items"](validator, items, once, schema)


ListValidator: Any = extend(Draft202012Validator, {"items": each_object_once})


@pytest.mark.parametrize("given", LISTS, ids=lambda given: repr(given)[:20])
@pytest.mark.parametrize("name", ["EmbeddingsRequest", "CompletionRequest"])
def test_prompts_are_taken_as_they_are_described(name: str, given: Any) -> None:
    field = "input" if name == "EmbeddingsRequest" else "prompt"
    schema = described()["components"]["schemas"][name]["properties"][field]
    assert ListValidator(schema).is_valid(given) == taken(name, field, given)


def taken(name: str, field: str, given: Any) -> bool:
    """By the parser for an OpenAI-compatible server."""
    try:
        if name == "EmbeddingsRequest":
            parse_embeddings({field: given})
        else:
            parse_completion(msgspec.json.encode({field: given}))
    except BadInput:
        return False
    return True


DOCUMENTS: list[tuple[dict[str, Any], bool]] = [
    ({"text": "a"}, True),
    ({"text": "a", "media_type": "text/html", "content": None}, True),
    ({"content": "YQ==", "media_type": "application/pdf"}, True),
    ({}, False),
    ({"text": None}, False),
    ({"text": "a", "content": "YQ==", "media_type": "text/plain"}, False),
    ({"content": "YQ=="}, False),
    ({"content": "Y", "media_type": "text/plain"}, False),
    ({"text": "a", "media_type": "application/pdf"}, False),
]


@pytest.mark.parametrize(("body", "fits"), DOCUMENTS)
def test_a_document_is_taken_as_it_is_described(body: dict[str, Any], fits: bool) -> None:
    document = described()
    schema = document["paths"]["/documents/{id}"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    either = Draft202012Validator(schema["allOf"][1])
    assert either.is_valid(body) == fits
    try:
        content_of(msgspec.convert(body, PutDocument))
    except BadInput:
        assert not fits
    else:
        assert fits
