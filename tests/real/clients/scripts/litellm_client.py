"""The SDK of `litellm`."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is downloaded

import litellm
from common import HELLO, Given, asked_again, half_are_left, main
from openai_client import MESSAGES, TOOL, Weir, streamed, whole

litellm.suppress_debug_info = True
litellm.telemetry = False


def to(given: Given, model: str, key: str = "", provider: str = "openai") -> dict[str, Any]:
    return {
        "model": f"{provider}/{model}", "api_base": given.base_url, "api_key": key or given.key, "num_retries": 0,
        "max_retries": 0,
    }  # fmt: skip


def chat(given: Given, **fields: Any) -> Any:
    return litellm.completion(**{**to(given, given.own), "messages": MESSAGES, "max_tokens": 8, **fields})


def at_other(given: Given, **fields: Any) -> Any:
    return litellm.completion(**to(given, given.other), messages=MESSAGES, **fields)


async def chat_async(given: Given) -> Any:
    return whole(await litellm.acompletion(**to(given, given.own), messages=MESSAGES, max_tokens=8))


async def half_left(given: Given) -> Any:
    async def stream(number: int) -> AsyncIterator[str]:
        chunks: Any = await litellm.acompletion(
            **to(given, given.own), messages=[{"role": "user", "content": f"{HELLO} {number}"}], max_tokens=24,
            stream=True, timeout=120,
        )  # fmt: skip
        try:
            async for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content
        finally:
            await chunks.aclose()

    return await half_are_left(stream)


def tools(given: Given) -> Any:
    calls = at_other(given, tools=[TOOL], tool_choice="required").choices[0].message.tool_calls
    return [[one.function.name, json.loads(one.function.arguments)] for one in calls]


def text(given: Given, model: str, **fields: Any) -> Any:
    return litellm.text_completion(**to(given, model, provider="text-completion-openai"), **fields)


def vectors(given: Given) -> Any:
    answer = litellm.embedding(**to(given, given.other), input=["one", "three"])
    return [one["embedding"] for one in answer.data]


async def bridge(given: Given) -> Any:
    """Anthropic's form, which litellm translates."""
    answer: Any = await litellm.anthropic.messages.acreate(
        model=f"hosted_vllm/{given.own}", api_base=given.base_url, api_key=given.key, messages=MESSAGES, max_tokens=8
    )
    usage = answer["usage"]
    content = "".join(part.get("text", "") for part in answer["content"])
    return {"text": content, "finish": answer["stop_reason"], "usage": [usage["input_tokens"], usage["output_tokens"]]}


OPERATIONS = {
    "chat": lambda given: whole(chat(given)),
    "chat_async": chat_async,
    "chat_stream": lambda given: streamed_by_litellm(chat(given, stream=True, stream_options={"include_usage": True})),
    "completion": lambda given: whole(text(given, given.own, prompt=HELLO, max_tokens=8)),
    "half_left": half_left,
    "tools": tools,
    "parsed": lambda given: json.loads(at_other(given, response_format=Weir).choices[0].message.content),
    "several": lambda given: [choice.message.content for choice in at_other(given, n=2).choices],
    "prompts": lambda given: [one["text"] for one in text(given, given.other, prompt=["one", "two"]).choices],
    "vectors": vectors,
    "bridge": bridge,
    "limited": lambda given: asked_again(lambda: chat(given, api_key=given.limited_key)),
    "bad": lambda given: chat(given, max_tokens=-1),
    "beyond_own": lambda given: chat(given, n=2),
    "no_key": lambda given: chat(given, api_key="nobody"),
    "no_model": lambda given: chat(given, model="openai/none"),
    "responses": lambda given: litellm.responses(**to(given, given.own), input=HELLO),
}


def streamed_by_litellm(chunks: Any) -> Any:
    for_all = list(chunks)
    for chunk in for_all:
        chunk.usage = getattr(chunk, "usage", None)
    return streamed(for_all)


if __name__ == "__main__":
    main(OPERATIONS)
