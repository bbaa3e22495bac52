"""`langchain-openai`: ChatOpenAI, OpenAI, OpenAIEmbeddings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import tiktoken
from common import HELLO, PICTURE, Given, asked_again, half_are_left, main
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from openai_client import TOOL, Weir
from tiktoken import registry

# OpenAIEmbeddings tokenizes with a vocabulary that tiktoken would download. Here each byte is a token.
BYTES = tiktoken.Encoding(
    "cl100k_base", pat_str=r"(?s:.)", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={}
)
registry.ENCODINGS["cl100k_base"] = BYTES


def model(given: Given, name: str = "", key: str = "", **fields: Any) -> ChatOpenAI:
    fields = {"max_tokens": 8, "max_retries": 0, **fields}
    return ChatOpenAI(base_url=given.base_url, api_key=key or given.key, model=name or given.own, **fields)


def whole(message: Any) -> dict[str, Any]:
    usage = message.usage_metadata
    finish = message.response_metadata.get("finish_reason")
    return {"text": message.content, "finish": finish, "usage": [usage["input_tokens"], usage["output_tokens"]]}


def chat_stream(given: Given) -> Any:
    chunks = list(model(given, stream_usage=True).stream(HELLO))
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    return {**whole(total), "pieces": sum(bool(chunk.content) for chunk in chunks)}


async def chat_async(given: Given) -> Any:
    return whole(await model(given).ainvoke(HELLO))


async def half_left(given: Given) -> Any:
    asked = model(given, max_tokens=24, max_retries=2, timeout=120)

    async def stream(number: int) -> AsyncIterator[str]:
        chunks = asked.astream(f"{HELLO} {number}")
        try:
            async for chunk in chunks:
                if chunk.content:
                    yield str(chunk.content)
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]

    return await half_are_left(stream)


def tools(given: Given) -> Any:
    bound = model(given, given.other).bind_tools([TOOL], tool_choice="required")
    return [[call["name"], call["args"]] for call in bound.invoke(HELLO).tool_calls]


def parsed(given: Given) -> Any:
    found = model(given, given.other, max_tokens=64).with_structured_output(Weir).invoke(HELLO)
    assert isinstance(found, Weir)
    return found.model_dump()


def several(given: Given) -> Any:
    found = model(given, given.other, n=2).generate([[HumanMessage(HELLO)]])
    return [one.text for one in found.generations[0]]


def picture(given: Given) -> Any:
    parts: Any = [{"type": "text", "text": HELLO}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    return model(given, given.other).invoke([HumanMessage(content=parts)]).content


def text(given: Given, name: str, prompts: list[str]) -> Any:
    made = OpenAI(base_url=given.base_url, api_key=given.key, model=name, max_tokens=8, max_retries=0)
    return made.generate(prompts)


def completion(given: Given) -> Any:
    found = text(given, given.own, [HELLO])
    usage, one = found.llm_output["token_usage"], found.generations[0][0]
    counts = [usage["prompt_tokens"], usage["completion_tokens"]]
    return {"text": one.text, "finish": one.generation_info["finish_reason"], "usage": counts}


def vectors(given: Given, **fields: Any) -> Any:
    made = OpenAIEmbeddings(base_url=given.base_url, api_key=given.key, model=given.other, max_retries=0, **fields)
    return made.embed_documents(["one", "three"])


OPERATIONS = {
    "chat": lambda given: whole(model(given).invoke(HELLO)),
    "chat_async": chat_async,
    "chat_stream": chat_stream,
    "completion": completion,
    "half_left": half_left,
    "batch": lambda given: [bool(one.content) for one in model(given).batch([HELLO] * 5)],
    "tools": tools,
    "parsed": parsed,
    "several": several,
    "picture": picture,
    "prompts": lambda given: [one[0].text for one in text(given, given.other, ["one", "two"]).generations],
    "vectors": lambda given: vectors(given, check_embedding_ctx_length=False),
    "vectors_of_ids": vectors,  # the default
    "limited": lambda given: asked_again(lambda: model(given, key=given.limited_key).invoke(HELLO)),
    "bad": lambda given: model(given, max_tokens=-1).invoke(HELLO),
    "beyond_own": lambda given: model(given, n=2).invoke(HELLO),
    "no_key": lambda given: model(given, key="nobody").invoke(HELLO),
    "no_model": lambda given: model(given, "none").invoke(HELLO),
    "responses": lambda given: model(given, use_responses_api=True).invoke(HELLO),
}

if __name__ == "__main__":
    main(OPERATIONS)
