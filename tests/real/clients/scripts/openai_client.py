"""The official `openai` package."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from common import HELLO, PICTURE, Given, asked_again, half_are_left, main
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MESSAGES: Any = [{"role": "user", "content": HELLO}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "level_of",
        "parameters": {"type": "object", "properties": {"river": {"type": "string"}}, "required": ["river"]},
    },
}


class Weir(BaseModel):
    name: str
    height_m: int


def client(given: Given, key: str = "") -> OpenAI:
    return OpenAI(base_url=given.base_url, api_key=key or given.key, max_retries=0, timeout=60)


def whole(answer: Any) -> dict[str, Any]:
    choice, usage = answer.choices[0], answer.usage
    text = choice.text if hasattr(choice, "text") else choice.message.content
    return {"text": text, "finish": choice.finish_reason, "usage": [usage.prompt_tokens, usage.completion_tokens]}


def streamed(chunks: Any) -> dict[str, Any]:
    pieces, usage = [], None
    for chunk in chunks:
        usage = chunk.usage or usage
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    assert usage is not None
    return {"text": "".join(pieces), "pieces": len(pieces), "usage": [usage.prompt_tokens, usage.completion_tokens]}


def chat(given: Given) -> Any:
    return whole(client(given).chat.completions.create(model=given.own, messages=MESSAGES, max_tokens=8))


async def chat_async(given: Given) -> Any:
    async with AsyncOpenAI(base_url=given.base_url, api_key=given.key, max_retries=0) as made:
        return whole(await made.chat.completions.create(model=given.own, messages=MESSAGES, max_tokens=8))


def chat_stream(given: Given) -> Any:
    options: Any = {"include_usage": True}
    return streamed(
        client(given).chat.completions.create(
            model=given.own, messages=MESSAGES, max_tokens=8, stream=True, stream_options=options
        )
    )


async def half_left(given: Given) -> Any:
    async with AsyncOpenAI(base_url=given.base_url, api_key=given.key, timeout=120) as made:

        async def stream(number: int) -> AsyncIterator[str]:
            chunks = await made.chat.completions.create(
                model=given.own, messages=[{"role": "user", "content": f"{HELLO} {number}"}], max_tokens=24, stream=True
            )
            async with chunks:
                async for chunk in chunks:
                    if chunk.choices and chunk.choices[0].delta.content:
                        yield chunk.choices[0].delta.content

        return await half_are_left(stream)


def tools(given: Given) -> Any:
    asked: Any = {"model": given.other, "messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}
    call = client(given).chat.completions.create(**asked).choices[0].message.tool_calls
    assert call is not None
    return [[one.function.name, json.loads(one.function.arguments)] for one in call]


def tools_stream(given: Given) -> Any:
    with client(given).chat.completions.stream(model=given.other, messages=MESSAGES, tools=[TOOL]) as stream:
        message = stream.get_final_completion().choices[0].message
    return [[one.function.name, json.loads(one.function.arguments)] for one in message.tool_calls or []]


def parsed(given: Given) -> Any:
    answer = client(given).chat.completions.parse(model=given.other, messages=MESSAGES, response_format=Weir)
    found = answer.choices[0].message.parsed
    assert isinstance(found, Weir)
    return found.model_dump()


def several(given: Given) -> Any:
    answer = client(given).chat.completions.create(model=given.other, messages=MESSAGES, n=2)
    return [choice.message.content for choice in answer.choices]


def picture(given: Given) -> Any:
    parts = [{"type": "text", "text": HELLO}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    messages: Any = [{"role": "user", "content": parts}]
    return client(given).chat.completions.create(model=given.other, messages=messages).choices[0].message.content


def prompts(given: Given, prompt: Any = ("one", "two")) -> Any:
    answer = client(given).completions.create(model=given.other, prompt=list(prompt))
    return [choice.text for choice in answer.choices]


def vectors(given: Given, texts: Any = ("one", "three")) -> Any:
    answer = client(given).embeddings.create(model=given.other, input=list(texts))
    return [one.embedding for one in answer.data]


OPERATIONS = {
    "models": lambda given: [model.id for model in client(given).models.list()],
    "model": lambda given: client(given).models.retrieve(given.own).id,
    "chat": chat,
    "chat_async": chat_async,
    "chat_stream": chat_stream,
    "completion": lambda given: whole(client(given).completions.create(model=given.own, prompt=HELLO, max_tokens=8)),
    "half_left": half_left,
    "tools": tools,
    "tools_stream": tools_stream,
    "parsed": parsed,
    "several": several,
    "picture": picture,
    "prompts": prompts,
    "token_ids": lambda given: prompts(given, [[1, 2, 3], [4]]),
    "vectors": vectors,
    "vectors_of_ids": lambda given: vectors(given, [[1, 2, 3], [4]]),
    "limited": lambda given: asked_again(
        lambda: client(given, given.limited_key).chat.completions.create(
            model=given.own, messages=MESSAGES, max_tokens=4
        )
    ),
    "bad": lambda given: client(given).chat.completions.create(model=given.own, messages=MESSAGES, max_tokens=-1),
    "beyond_own": lambda given: client(given).chat.completions.create(model=given.own, messages=MESSAGES, n=2),
    "no_key": lambda given: client(given, "nobody").models.list(),
    "no_model": lambda given: client(given).chat.completions.create(model="none", messages=MESSAGES),
    "responses": lambda given: client(given).responses.create(model=given.own, input=HELLO),
    "without_v1": lambda given: client(given._replace(base_url=given.root)).chat.completions.create(
        model=given.own, messages=MESSAGES
    ),
}

if __name__ == "__main__":
    main(OPERATIONS)
