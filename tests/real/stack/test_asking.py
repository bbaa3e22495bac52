"""The stack when all is well: what people and the official client get from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import NotFoundError, OpenAI

from tests.real.stack.stand import MODEL, Stand, until


@pytest.fixture
def openai(stand: Stand) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stand.router.url}/v1", api_key="any", max_retries=0, timeout=30) as client:
        yield client


def test_a_question_is_answered_from_the_corpus_with_citations(stand: Stand) -> None:
    answer = stand.ask(max_tokens=200)
    assert "half past six" in answer["text"]
    assert (answer["source"], answer["retrieval_source"], answer["degraded"]) == ("tier1", "db", [])
    assert answer["citations"][0]["doc_id"] == "lock.md"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_same_question_is_answered_alike_from_the_cache(stand: Stand) -> None:
    query = stand.question()
    first = stand.ask(query)
    until(lambda: stand.source(query) == "cache", "the result is cached")
    again = stand.ask(query)
    assert (again["text"], again["citations"]) == (first["text"], first["citations"])


def test_a_streamed_question_ends_with_the_answer_it_told(stand: Stand) -> None:
    query = stand.question()
    body = {"query": query, "stream": True, "max_tokens": 40}
    reply = stand.http.post(f"{stand.router.url}/ask", json=body)
    assert reply.status_code == 200
    assert reply.text.endswith("data: [DONE]\n\n")
    assert reply.text.count("event: answer\n") == 1
    assert "lock.md" in reply.text


def test_the_official_client_counts_the_same_tokens_streamed_and_not(openai: OpenAI) -> None:
    messages = [{"role": "user", "content": "What does a weir do for a river, and why?"}]
    for most in (7, 400):
        plain = openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=most)
        stream = openai.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=most, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        assert said == plain.choices[0].message.content
        assert chunks[-1].usage == plain.usage
        assert plain.usage is not None
        assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
        assert reasons[-1] == plain.choices[0].finish_reason
        assert set(reasons[:-1]) == {None}
        assert (plain.usage.completion_tokens == most) == (plain.choices[0].finish_reason == "length")


def test_the_official_client_gets_plain_completions(openai: OpenAI) -> None:
    plain = openai.completions.create(model=MODEL, prompt="What is a weir?", max_tokens=9)
    chunks = list(openai.completions.create(model=MODEL, prompt="What is a weir?", max_tokens=9, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 9


def test_the_official_client_unpacks_the_embeddings_that_it_asks_for(openai: OpenAI) -> None:
    texts = ["a weir holds a river", "bread is baked in an oven", "the river is held by a weir"]
    packed = openai.embeddings.create(model="all-MiniLM-L6-v2", input=texts)  # base64, unless told otherwise
    plain = openai.embeddings.create(model="all-MiniLM-L6-v2", input=texts, encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(number * number for number in one.embedding) == pytest.approx(1, abs=1e-4)
    weir, bread, river = (one.embedding for one in plain.data)
    assert _dot(weir, river) > _dot(weir, bread)
    assert packed.usage == plain.usage


def test_the_official_client_lists_the_models_and_is_told_of_one_that_is_not_there(openai: OpenAI) -> None:
    assert [model.id for model in openai.models.list()] == [MODEL]
    with pytest.raises(NotFoundError) as caught:
        openai.chat.completions.create(model="gpt-none", messages=[{"role": "user", "content": "hi"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
