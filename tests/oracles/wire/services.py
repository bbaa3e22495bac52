"""The worker, the desk, the governor and the storm bench."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from loadtests.storm import app as storm
from loadtests.storm.config import StormSettings
from services.core.leases.book import MAX_ROUTERS
from services.desk import app as desk
from services.desk.book import LEARN_S
from services.desk.config import DeskSettings
from services.governor import app as governor
from services.governor.config import GovernorSettings
from services.worker import app as worker
from services.worker.config import WorkerSettings
from tests.governor.talk import chunk, frame, manifest, ping, upload
from tests.oracles.wire.transcript import Transcript, connect, get, post, request
from tests.oracles.within import given, within

BARE: dict[str, Any] = {"_env_file": None, "log_level": "ERROR", "metrics_port": 0}
ASKED = {"id": "r-1", "tenant": "demo", "deadline_ms": 5000, "max_tokens": 4, "prompt": "one two three"}


async def worker_routes() -> str:
    """What a worker answers its router, and a person with curl."""
    told = Transcript("The worker")
    settings = WorkerSettings(**BARE, worker_port=0, worker_queue_size=1, max_batch_size=1, worker_name="w")
    async with within(worker.build(settings, **given("worker"))) as process:
        port, other = process.bound_port, process.bound_metrics_port

        async def say(name: str, *pieces: bytes | float, within_s: float = 2.0) -> None:
            await told.say(name, port, *pieces, within_s=within_s)

        await say("health", get("/health"))
        await say("readiness", get("/health/ready"))
        await say("status", get("/status"))
        await say("an answer, streamed", post("/generate", ASKED))
        await say("an answer", post("/generate", {**ASKED, "stream": False}))
        chat = {**ASKED, "prompt": None, "messages": [{"role": "user", "content": "hi"}], "stream": False}
        await say("an answer to a chat", post("/generate", chat))
        await say("an answer that stops", post("/generate", {**ASKED, "stop": ["e"], "stream": False}))
        await say("the plain form", post("/infer", {"prompt": "one two", "max_tokens": 3}))
        await say("status after some work", get("/status"))
        for name, fields in {
            "neither prompt nor messages": {"prompt": None}, "an empty prompt": {"prompt": ""},
            "another model": {"model": "gpt"}, "no tokens": {"max_tokens": 0}, "an id that is none": {"id": "a b"},
            "a deadline of nothing": {"deadline_ms": 0}, "a tenant without a name": {"tenant": ""},
            "an empty stop": {"stop": [""]}, "a prompt that is too long": {"prompt": "word " * 40_000},
        }.items():  # fmt: skip
            await say(name, post("/generate", {**ASKED, **fields}))
        await say("no JSON", post("/generate", b"{"))
        await say("the deadline passes", post("/generate", {**ASKED, "deadline_ms": 50, "max_tokens": 100}))
        runs = await _begin(port, {**ASKED, "id": "runs", "max_tokens": 500, "deadline_ms": 60_000, "ignore_eos": True})
        waits = await _begin(port, {**ASKED, "id": "waits", "max_tokens": 500, "deadline_ms": 60_000})
        await say("one too many", post("/generate", {**ASKED, "id": "third"}), within_s=0.05)
        await say("an id that is here already", post("/generate", {**ASKED, "id": "runs"}), within_s=0.05)
        await say("one that waits is cancelled", post("/cancel/waits", b""), within_s=0.05)
        await _heard(told, "what it was told", waits)
        await say("one that runs is cancelled", post("/cancel/runs", b""), within_s=0.05)
        told.lines += ["", "=== the last of what it was told"]
        told.lines.append(f"< {runs.heard[-1][1].decode()!r}")
        await say("one that never was is cancelled", post("/cancel/nobody", b""))
        await say("nothing", get("/nothing"))
        await say("the wrong method", get("/generate"))
        await say("a web page's host", get("/status", host="evil.example"))
        await told.say("metrics", other, get("/metrics"), page=True)
        await told.say("faults", other, get("/faults"))
        await told.say("a fault is put", other, request("PUT", "/faults", {"slow_factor": 2, "for_s": 3}))
        await told.say("a fault that is none", other, request("PUT", "/faults", {"slow": 2}))
        await told.say("a fault by a web page", other, request("PUT", "/faults", {}, origin="http://localhost"))
        await told.say("faults are healed", other, request("DELETE", "/faults"))
        await _leases(port, say)
        process.drain.begin()
        await say("while it drains", post("/generate", ASKED))
        await say("a stream of grants while it drains", get("/lease/r?epoch=5"))
        await say("readiness while it drains", get("/health/ready"))
    return told.text


def _asking(router: str, number: int, **fields: Any) -> dict[str, Any]:
    want = {"class_name": "default", "requests": 1, "light": 0, "level": 0, "turn": 0}
    return {"router": router, "stamp": [5, number], "ack": [0, 0], "wants": [want], "ttl_ms": 3000, **fields}


async def _leases(port: int, say: Any) -> None:
    """What it lends to several routers."""
    stream = await connect(port)
    stream.transport.write(get("/lease/r?epoch=5"))
    await say("an ask for a slot", post("/lease", _asking("r", 1)), within_s=0.01)
    await say("another router's ask", post("/lease", _asking("s", 1)), within_s=0.01)
    await say("a request without a slot", post("/generate", {**ASKED, "lease": _asking("s", 2)}), within_s=0.01)
    await say(
        "an answer with a grant", post("/generate", {**ASKED, "stream": False, "lease": _asking("r", 2)}), within_s=0.2
    )
    await say("an ask that is none", post("/lease", _asking("no spaces", 1)), within_s=0.01)
    await say("a stream without an epoch", get("/lease/r"), within_s=0.01)
    await say("a stream of an older process", get("/lease/r?epoch=4"), within_s=0.01)
    await say("a stream of grants", get("/lease/s?epoch=5"), within_s=0.01)
    others = [await connect(port) for _ in range(MAX_ROUTERS)]
    for number, other in enumerate(others):
        other.transport.write(post("/lease", _asking(f"r{number}", 1)) + get(f"/lease/r{number}?epoch=5"))
    await asyncio.sleep(0.05)
    await say("one router too many", get("/lease/t?epoch=5"), within_s=0.01)
    for client in (stream, *others):
        client.transport.abort()


async def desk_routes() -> str:
    """What a desk answers several routers."""
    told = Transcript("The desk")
    settings = DeskSettings(**BARE, desk_port=0, desk_servers="vllm-a=2", desk_hold_s=5.0)
    async with within(desk.build(settings, **given("desk"))) as process:
        port, other = process.bound_port, process.bound_metrics_port

        async def say(name: str, *pieces: bytes, within_s: float = 0.01) -> None:
            await told.say(name, port, *pieces, within_s=within_s)

        await say("readiness", get("/health/ready"))
        stream = await connect(port)
        stream.transport.write(get("/vllm-a/lease/r?epoch=5"))
        await asyncio.sleep(0.01)
        await say("an ask while it learns", post("/vllm-a/lease", {**_asking("r", 1), "count": [1, 1]}))
        await asyncio.sleep(LEARN_S)
        await say("an ask for a slot", post("/vllm-a/lease", {**_asking("r", 2), "count": [2, 1]}))
        await say("an ask without a count", post("/vllm-a/lease", _asking("r", 3)))
        await say("an ask of a process without a stream", post("/vllm-a/lease", {**_asking("s", 1), "count": [1, 0]}))
        await say("a server that it does not know", post("/vllm-b/lease", {**_asking("r", 4), "count": [3, 1]}))
        await say("a stream of another router", get("/vllm-a/lease/s?epoch=7"))
        stream.transport.abort()
        await asyncio.sleep(0.01)
        await told.say("metrics", other, get("/metrics"), page=True)
        process.drain.begin()
        await say("a stream of grants while it drains", get("/vllm-a/lease/r?epoch=6"))
    return told.text


async def _begin(port: int, asked: dict[str, Any]) -> Any:
    client = await connect(port)
    client.transport.write(post("/generate", asked))
    await asyncio.sleep(0.05)
    return client


async def _heard(told: Transcript, name: str, client: Any) -> None:
    told.lines += ["", f"=== {name}"]
    await told.listen(client, 0.01)


async def worker_with_token() -> str:
    """A listener that asks for the services' own token."""
    told = Transcript("The worker with a token")
    token = "a-token-of-our-own-services"
    settings = WorkerSettings(**BARE, worker_port=0, internal_token=token, worker_name="w")
    async with within(worker.build(settings, **given("worker"))) as process:
        for name, headers in {
            "no token": {}, "a wrong token": {"authorization": "Bearer wrong"},
            "another scheme": {"authorization": f"Basic {token}"}, "the token": {"authorization": f"bearer {token}"},
        }.items():  # fmt: skip
            await told.say(f"status, {name}", process.bound_port, get("/status", **headers))
            await told.say(f"metrics, {name}", process.bound_metrics_port, get("/metrics", **headers), page=True)
        await told.say("health, no token", process.bound_port, get("/health"))
    return told.text


CORPUS = Path(__file__).parents[2] / "governor" / "corpus"


async def governor_lines() -> str:
    """The governor's protocol of lines, and its metrics."""
    told = Transcript("The governor")
    settings = GovernorSettings(
        **BARE, governor_port=0, governor_backend="stub", governor_max_inflight=1, governor_jobs=4,
        governor_idle_s=5.0, governor_line_bytes=2048,
    )  # fmt: skip
    async with within(governor.build(settings, **given("governor"))) as process:
        port = process.bound_port

        async def say(name: str, *pieces: bytes | float, within_s: float = 1.0) -> None:
            await told.say(name, port, *pieces, within_s=within_s)

        await say("a ping", ping())
        await say("an upload", *upload(b"hello world!"))
        await say("an upload of nothing", *upload(b""))
        await say("an upload with a deadline", *upload(b"hello", ttl_ms=50))
        holder = await connect(port)
        holder.transport.write(b"".join(upload(b"first", job="J_first")))
        await asyncio.sleep(0.01)
        await say("the one slot is taken", *upload(b"second", job="J_second"), within_s=0.05)
        await say("asked while the slot is taken", ping(job="J_second"), within_s=0.05)
        await asyncio.sleep(1)
        for name, line in {
            "no JSON": b"hello\n", "no object": b"[]\n", "an empty line": b"\n", "no version": b'{"verb":"ping"}\n',
            "another version": frame(verb="ping", job="J", seq=1, v=1),
            "another verb": frame(verb="sing", job="J", seq=1),
            "no job": frame(verb="ping", seq=1), "nothing shared": frame(verb="share", job="J", seq=1),
            "a manifest that is none": frame(verb="share", job="J", seq=1, payload_manifest={"payload_id": "P"}),
            "a digest that is none": frame(verb="share", job="J", seq=1, payload_manifest=manifest(b"hi", sha256="x")),
            "a chunk of nothing": frame(verb="share", job="J", seq=1, payload_chunk=chunk(b"hi", 0)),
            "a line that is too long": b"x" * 3000 + b"\n", "half a line": b'{"v":0',
        }.items():  # fmt: skip
            await say(name, line, within_s=0.5)
        told_in = frame(verb="share", job="J", seq=1, payload_manifest=manifest(b"hello", chunk_bytes=8))
        await say("a chunk with another digest", told_in, frame(
            verb="share", job="J", seq=2, payload_chunk=chunk(b"hallo", 0, sha256="0" * 64)))  # fmt: skip
        many = [
            frame(verb="share", job=f"J_{number}", seq=1, payload_manifest=manifest(b"hello")) for number in range(6)
        ]
        await say("jobs too many", *many)
        await say("a client that says nothing", within_s=20.0)
        for path in sorted(CORPUS.glob("*.bin")):
            await say(f"the corpus: {path.stem}", path.read_bytes(), within_s=0.3)
        await told.say("metrics", process.bound_metrics_port, get("/metrics"), page=True)
        await told.say("nothing", process.bound_metrics_port, get("/nothing"))
        process.listener.announce()
        await say("a ping before it leaves", ping())
        runs = await connect(port)
        runs.transport.write(b"".join(upload(b"last")))
        half = await connect(port)
        half.transport.write(upload(b"half of it")[0])
        await asyncio.sleep(0.01)
        process.drain.begin()
        closing = asyncio.ensure_future(process.listener.close(1.0))
        for name, client in {"one that waits when it leaves": half, "one that runs when it leaves": runs}.items():
            told.lines += ["", f"=== {name}"]
            await told.listen(client, 0.5)
        await closing
    return told.text


async def governor_bounds() -> str:
    """Tokens, a backend that fails, bytes and connections too many, and a client that sends no more."""
    told = Transcript("The governor: tokens and bounds")
    settings = GovernorSettings(
        **BARE, governor_port=0, governor_upstream_url="http://127.0.0.1:1/v1/completions", max_connections=2,
        max_source_share=1, governor_tokens="a-token-of-the-oracle", governor_connection_bytes=70_000_000,
        governor_total_bytes=70_000_000,
    )  # fmt: skip
    token = {"auth": "a-token-of-the-oracle"}

    def shown(*frames: bytes) -> bytes:
        return b"".join(json.dumps({**json.loads(each), **token}).encode() + b"\n" for each in frames)

    async with within(governor.build(settings, **given("governor"))) as process:
        port = process.bound_port
        await told.say("no token", port, *upload(b"hello"))
        await told.say("a wrong token", port, frame(verb="ping", job="J", seq=1, auth="wrong"))
        await told.say("the token", port, shown(ping()))
        await told.say("the backend is gone", port, shown(*upload(b"hello")))
        large = [frame(verb="share", job=f"J_{number}", seq=1, payload_manifest=manifest(
            b"", total_bytes=60_000_000, chunk_bytes=60_000_000, chunks=1)) for number in range(2)]  # fmt: skip
        await told.say("more bytes than may be held", port, shown(*large))
        half, name = shown(*upload(b"hello")), "a client that sends no more, while its job runs"
        told.lines += ["", f"=== {name}"]
        client = await connect(port)
        client.transport.write(half)
        client.transport.write_eof()
        await told.listen(client, 1.0)
        others = [await connect(port) for _ in range(2)]
        await told.say("one connection too many", port)
        for other in others:
            other.transport.abort()
    return told.text


async def storm_bench() -> str:
    """The storm bench, without a router to send storms to."""
    told = Transcript("The storm bench")
    settings = StormSettings(**BARE, storm_port=0, storm_router_url="http://127.0.0.1:1", storm_capacity_rps=1)
    async with within(storm.build(settings)) as process:
        port = process.bound_port
        await told.say("the state", port, get("/storm"))
        await told.say("begun by a web page", port, post("/storm", {"scenario": "burst"}))
        await told.say("nonsense", port, post("/storm", {"scenario": "x"}, x_weir_console="1"))
        await told.say("stopped", port, request("DELETE", "/storm", x_weir_console="1"))
        await told.say("a run that never was", port, get("/storm/run?run=abcd"))
        await told.say("the report of a run that never was", port, get("/storm/report?run=abcd"))
    return told.text
