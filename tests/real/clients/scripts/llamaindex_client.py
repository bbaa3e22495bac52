"""`llama-index`: OpenAILike, which is its class for other servers, and OpenAIEmbedding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from common import HELLO, Given, asked_again, half_are_left, main
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai_like import OpenAILike
from openai_client import Weir

MESSAGES = [ChatMessage(role="user", content=HELLO)]


def model(given: Given, name: str = "", key: str = "", **fields: Any) -> OpenAILike:
    fields = {"is_chat_model": True, "max_tokens": 8, "max_retries": 0, **fields}
    return OpenAILike(api_base=given.base_url, api_key=key or given.key, model=name or given.own, **fields)


def whole(answer: Any, text: str) -> dict[str, Any]:
    usage = answer.raw.usage
    finish = answer.raw.choices[0].finish_reason if answer.raw.choices else None
    return {"text": text, "finish": finish, "usage": [usage.prompt_tokens, usage.completion_tokens]}


def chat(given: Given) -> Any:
    answer = model(given).chat(MESSAGES)
    return whole(answer, answer.message.content or "")


async def chat_async(given: Given) -> Any:
    answer = await model(given).achat(MESSAGES)
    return whole(answer, answer.message.content or "")


def chat_stream(given: Given) -> Any:
    options = {"stream_options": {"include_usage": True}}
    answers = list(model(given, additional_kwargs=options).stream_chat(MESSAGES))
    text = "".join(answer.delta or "" for answer in answers)
    return {**whole(answers[-1], text), "pieces": sum(bool(answer.delta) for answer in answers)}


def completion(given: Given) -> Any:
    answer = model(given, is_chat_model=False).complete(HELLO)
    return whole(answer, answer.text)


async def half_left(given: Given) -> Any:
    asked = model(given, max_tokens=24, max_retries=2, timeout=120)

    async def stream(number: int) -> AsyncIterator[str]:
        answers = await asked.astream_chat([ChatMessage(role="user", content=f"{HELLO} {number}")])
        try:
            async for answer in answers:
                if answer.delta:
                    yield answer.delta
        finally:
            await answers.aclose()  # type: ignore[attr-defined]

    return await half_are_left(stream)


def level_of(river: str) -> str:
    """The level of a river."""
    return river


def tools(given: Given) -> Any:
    asked = model(given, given.other, is_function_calling_model=True)
    tool = FunctionTool.from_defaults(level_of)
    answer = asked.chat_with_tools([tool], user_msg=HELLO, tool_required=True)
    return [[call.tool_name, call.tool_kwargs] for call in asked.get_tool_calls_from_response(answer)]


def parsed(given: Given) -> Any:
    asked = model(given, given.other, max_tokens=64, should_use_structured_outputs=True)
    found: Any = asked.as_structured_llm(Weir).chat(MESSAGES).raw
    return found.model_dump()


def vectors(given: Given) -> Any:
    made = OpenAIEmbedding(api_base=given.base_url, api_key=given.key, model_name=given.other, max_retries=0)
    return made.get_text_embedding_batch(["one", "three"])


OPERATIONS = {
    "chat": chat,
    "chat_async": chat_async,
    "chat_stream": chat_stream,
    "completion": completion,
    "half_left": half_left,
    "tools": tools,
    "parsed": parsed,
    "vectors": vectors,
    "limited": lambda given: asked_again(lambda: model(given, key=given.limited_key).chat(MESSAGES)),
    "bad": lambda given: model(given, additional_kwargs={"max_tokens": -1}).chat(MESSAGES),
    "beyond_own": lambda given: model(given, additional_kwargs={"n": 2}).chat(MESSAGES),
    "no_key": lambda given: model(given, key="nobody").chat(MESSAGES),
    "no_model": lambda given: model(given, "none").chat(MESSAGES),
}

if __name__ == "__main__":
    main(OPERATIONS)
