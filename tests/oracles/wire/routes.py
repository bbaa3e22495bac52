"""The router's routes, in lab mode: answers plain and streamed, and everything that is no request for text."""

from __future__ import annotations

import asyncio

from tests.oracles.wire.stand import TEXTS, Library, standing
from tests.oracles.wire.transcript import Transcript, connect, get, post, request
from tests.router.rig import FakeWorker, answer, passage


async def answers() -> str:
    """Requests for text that are answered."""
    told = Transcript("The router: answers")
    library = Library(passages=[passage(1), passage(2)])
    async with standing(told, FakeWorker(answer, slots=8), retrieval=library) as stand:
        await stand.on_every_route("an answer")
        await stand.on_every_route("with its own id", headers={"x-request-id": "mine-1"}, fields={"max_tokens": 8})
        chat, text, ask = TEXTS.items()
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        await stand.say("a chat, streamed, with its usage", post(chat[0], {**chat[1], **usage}))
        await stand.say("a text, streamed, with its usage", post(text[0], {**text[1], **usage}))
        await stand.say("a chat by the model's name", post(chat[0], {**chat[1], "model": "fake"}))
        await stand.say("a chat with every field", post(chat[0], {
            "messages": [
                {"role": "system", "content": "short"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
            "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "n": 1, "stop": ["."], "seed": 7,
            "tenant": "acme",
        }))  # fmt: skip
        wishes = {"x_weir_deadline_ms": "5000", "x_weir_ttft_ms": "900", "prefer": "wait=2", "x_tenant": "acme"}
        await stand.say("a chat with wishes", post(chat[0], chat[1], **wishes))
        await stand.say("a chat in chunks", _in_chunks(chat[0], b'{"messages":[{"role":"user","content":"hi"}]}'))
        await stand.say("a chat whose client waits for leave", post(chat[0], chat[1], expect="100-continue"))
        await stand.say("the last one on its connection", post(chat[0], chat[1], connection="close"))
        await stand.say("two at once", post(chat[0], chat[1]) + post(text[0], text[1]))
        await stand.say("a stream before a plain one", post(chat[0], {**chat[1], "stream": True}) + post(*text))
        old = post(chat[0], {**chat[1], "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
        await stand.say("a stream in HTTP/1.0", old)
        await stand.say("a question of few passages", post(ask[0], {"query": "why?", "top_k": 2, "tenant": "acme"}))
    async with standing(told, FakeWorker(answer)) as stand:
        await stand.say("a question without retrieval", post("/ask", {"query": "why?"}))
        await stand.say("a question without retrieval, streamed", post("/ask", {"query": "why?", "stream": True}))
    return told.text


def _in_chunks(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    return b"%b%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (head, 10, body[:10], len(body) - 10, body[10:])


async def others() -> str:
    """Vectors, documents, models, health, descriptions, and what is not there."""
    told = Transcript("The router: other routes")
    library = Library()
    async with standing(told, FakeWorker(answer), retrieval=library) as stand:
        say = stand.say
        await say("models", get("/v1/models"))
        await say("a model", get("/v1/models/fake"))
        await say("a model that is not there", get("/v1/models/gpt-9"))
        await say("token ids for vectors", post("/v1/embeddings", {"input": [[1, 2]]}))
        await say("vectors", post("/v1/embeddings", {"input": ["one", "two"]}))
        await say("vectors in base64", post("/v1/embeddings", {"input": "one", "encoding_format": "base64"}))
        await say("vectors of another model", post("/v1/embeddings", {"input": "one", "model": "other"}))
        await say("vectors of another length", post("/v1/embeddings", {"input": "one", "dimensions": 3}))
        await say("vectors of nothing", post("/v1/embeddings", {"input": []}))
        library.warming = True
        await say("vectors before the embedder is warm", post("/v1/embeddings", {"input": "one"}))
        await say("a document is put", request("PUT", "/documents/guides/weir.md", {"text": "A weir."}))
        await say("a document that is none", request("PUT", "/documents/a", {"txt": "A weir."}))
        await say("documents are listed", get("/documents?limit=2"))
        await say("a document is removed", request("DELETE", "/documents/guides/weir.md"))
        await say("a document that is not there", request("DELETE", "/documents/guides/weir.md"))
        await say("health", get("/health"))
        await say("readiness", get("/health/ready"))
        await say("the description", get("/openapi.json"), page=True)
        await say("the description for people", get("/docs"), page=True)
        await say("the front page", get("/"), page=True)
        await say("nothing", get("/nothing"))
        for path in ("/v1/responses", "/v1/messages/count_tokens", "/v1/audio/speech", "/v1/v1/models", "/completions"):
            await say(f"what others serve: {path}", post(path, {}))
        await say("the wrong method", get("/ask"))
        await say("the wrong method for several", request("PATCH", "/documents/a"))
        for method in ("HEAD", "OPTIONS", "TRACE"):
            await say(f"{method} of what is there", request(method, "/v1/models"))
        await say("a path with a slash more", get("/v1/models/"))
        await say("a host that is another's", get("/v1/models", host="evil.example"))
        await say("a page of another site", post("/ask", {"query": "hi"}, origin="http://evil.example"))
        await say("a page of this host", post("/ask", {"query": "hi"}, origin="http://localhost"))
        await say("metrics are not here", get("/metrics"))
    async with standing(told, FakeWorker(answer)) as stand:
        await stand.say("readiness without retrieval", get("/health/ready"))
        await stand.say("vectors without retrieval", post("/v1/embeddings", {"input": "one"}))
        await stand.say("documents without retrieval", get("/documents"))
    async with standing(told) as stand:
        await stand.say("readiness without a worker", get("/health/ready"))
        await stand.say("models without a worker", get("/v1/models"))
    return told.text


async def console() -> str:
    """What the console's page asks for, in lab mode."""
    told = Transcript("The router: the console in lab mode")
    async with standing(told, FakeWorker(answer)) as stand:
        say = stand.say
        await say("the stream of frames", get("/console/events"), within_s=0.3)
        await say("the page", get("/console"), page=True)
        await say("the page, with a slash", get("/console/"), page=True)
        found = await say("a file", get("/console/static/format.js"), page=True)
        tag = next(line for line in found.split(b"\r\n") if line.startswith(b"etag: "))[6:].decode()
        await say("a file that the browser has", get("/console/static/format.js", if_none_match=tag), page=True)
        await say("a file, compressed", get("/console/static/format.js", accept_encoding="gzip"), page=True)
        await say("no such file", get("/console/static/../files.py"))
        await say("a request", post("/v1/chat/completions", TEXTS["/v1/chat/completions"], x_request_id="mine-2"))
        await say("the life of a request", get("/console/requests/mine-2"))
        await say("the life of no request", get("/console/requests/nobody"))
        await say("the policy, changed without the header", post("/console/policy", {"admission": False}))
        await say("the policy, changed", post("/console/policy", {"admission": False}, x_weir_console="1"))
        await say("the policy, changed by nonsense", post("/console/policy", {"admission": 3}, x_weir_console="1"))
        await say("the policy, changed by another site", post(
            "/console/policy", {}, x_weir_console="1", origin="http://evil.example"))  # fmt: skip
        await say("a storm where there is no bench", get("/console/storm"))
        viewers = [await connect(stand.port) for _ in range(65)]
        for viewer in viewers:
            viewer.transport.write(get("/console/events"))
        await asyncio.sleep(0.01)
        told.lines += ["", "=== one viewer too many"]
        await told.listen(viewers[-1], 0.01)
    async with standing(told, FakeWorker(answer), storm_url="http://127.0.0.1:1") as stand:
        await stand.say("a storm whose bench is gone", get("/console/storm"))
    return told.text
