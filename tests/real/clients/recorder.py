"""An OpenAI-compatible server whose answers say what it was sent: it stands for those behind Weir that can do more.

a chat                      `answer I`, for each of `n`
a chat with a picture       `a picture of N characters`
a chat with tools           a call of the first one, with the arguments RIVER
a chat with a JSON schema   WEIR as JSON
a completion                `answer to PROMPT`, for each prompt; token ids as a list
vectors                     for each input: its length, and 1 if it came as token ids
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "other"
RIVER = {"river": "Aare"}
WEIR = {"name": "the weir", "height_m": 3}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def message_of(body: dict[str, Any], index: int) -> dict[str, Any]:
    """The message of a chat's answer."""
    if body.get("tools"):
        function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps(RIVER)}
        call = {"id": f"call-{index}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if (body.get("response_format") or {}).get("type") == "json_schema":
        return {"role": "assistant", "content": json.dumps(WEIR)}
    return {"role": "assistant", "content": text_of(body["messages"][-1].get("content"), index)}


def text_of(content: Any, index: int) -> str:
    for part in content if isinstance(content, list) else ():
        if part["type"] == "image_url":
            return f"a picture of {len(part['image_url']['url'])} characters"
    return f"answer {index}"


def finish_of(message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else "stop"


def answer_of(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A plain answer."""
    head = {"id": "recorded-1", "created": 1_767_225_600, "model": MODEL}
    if path == "/v1/embeddings":
        return {"object": "list", "data": vectors_of(body), "model": MODEL, "usage": USAGE}
    if path == "/v1/completions":
        prompt = body["prompt"]
        prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
        choices = [
            {"index": index, "text": f"answer to {one}", "finish_reason": "stop", "logprobs": None}
            for index, one in enumerate(prompts)
        ]
        return {**head, "object": "text_completion", "choices": choices, "usage": USAGE}
    messages = [message_of(body, index) for index in range(body.get("n") or 1)]
    chosen = [
        {"index": index, "message": message, "finish_reason": finish_of(message), "logprobs": None}
        for index, message in enumerate(messages)
    ]
    return {**head, "object": "chat.completion", "choices": chosen, "usage": USAGE}


def vectors_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    given = body["input"]
    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    vectors = [[float(len(one)), float(not isinstance(one, str))] for one in inputs]
    return [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]


def events_of(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A chat's answer as a stream of one choice, whose message comes whole."""
    head = {"id": "recorded-1", "created": 1_767_225_600, "model": MODEL, "object": "chat.completion.chunk"}
    message = message_of(body, 0)
    for index, call in enumerate(message.get("tool_calls", ())):
        call["index"] = index
    yield {**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_of(message)}]}
    yield {**head, "choices": [], "usage": USAGE}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        self._send(
            200 if known else 404, {"object": "list", "data": [{"id": MODEL, "object": "model"}]} if known else {}
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not body.get("stream"):
            self._send(200, answer_of(self.path, body))
            return
        data = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events_of(body))
        self._send(200, data + b"data: [DONE]\n\n", "text/event-stream")

    def _send(self, status: int, body: dict[str, Any] | bytes, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@contextmanager
def recorder() -> Iterator[str]:
    """Its address, under which OpenAI's routes are."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
