"""The router with a tenants file: keys on the public port, the operator's token on the other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.oracles.wire.stand import TEXTS, Library, Stand, standing
from tests.oracles.wire.transcript import Transcript, connect, get, post, request
from tests.router.rig import FakeWorker, answer, hang

TENANTS = Path(__file__).parents[3] / "tenants.example.yaml"
CHAT = "/v1/chat/completions"
ADMIN = {"authorization": "Bearer an-operator-of-the-oracle"}
OURS = {"authorization": "Bearer a-token-of-our-own-services"}


def _key(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer weir_example_{tenant}"}


@asynccontextmanager
async def _keyed(told: Transcript) -> AsyncIterator[Stand]:
    """The tenants of the example, and one that may use no model that there is."""
    text = TENANTS.read_text(encoding="utf-8").replace('models: ["*"]', 'models: ["other"]')
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tenants.yaml"
        file.write_text(text, encoding="utf-8")
        library = Library()
        async with standing(
            told, FakeWorker(answer), retrieval=library, tenants_file=file, internal_token=OURS["authorization"][7:],
            admin_token=ADMIN["authorization"][7:],
        ) as stand:  # fmt: skip
            yield stand


async def tenants() -> str:
    """What a key opens."""
    told = Transcript("The router with a tenants file: the public port")
    async with _keyed(told) as stand:
        say = stand.say
        for route, body in TEXTS.items():
            await say(f"no key: {route}", post(route, body))
            await say(f"a key that nobody has: {route}", post(route, body, authorization="Bearer weir_nobody"))
            await say(f"a tenant by its word: {route}", post(route, body, x_tenant="demo"))
            await say(f"another scheme: {route}", post(route, body, authorization="Basic ZGVtbw=="))
        await say("a key", post(CHAT, TEXTS[CHAT], **_key("demo")))
        await say("a key in the other header", post(CHAT, TEXTS[CHAT], x_api_key="weir_example_demo"))
        await say("a key, and another tenant's name", post(CHAT, {**TEXTS[CHAT], "tenant": "acme"}, **_key("demo")))
        await say("a model that is not for this tenant", post(CHAT, {**TEXTS[CHAT], "model": "fake"}, **_key("acme")))
        await say("a class that may be asked for", post(CHAT, TEXTS[CHAT], **_key("demo"), x_weir_class="batch"))
        await say("a class above its own", post(CHAT, TEXTS[CHAT], **_key("nightly"), x_weir_class="interactive"))
        await say("models with a key", get("/v1/models", **_key("demo")))
        await say("models without one", get("/v1/models"))
        await say("models of a tenant that may use none", get("/v1/models", **_key("acme")))
        await say("vectors without a key", post("/v1/embeddings", {"input": "one"}))
        await say("documents without a key", get("/documents"))
        await say("a document of its tenant", request("PUT", "/documents/a", {"text": "A."}, **_key("acme")))
        await say("a large body without a key", post(CHAT, b"x" * 20_000))
        await say("a large body that is announced, without a key",
                  request("POST", CHAT, content_length="20000", expect="100-continue"))  # fmt: skip
        await say("health", get("/health"))
        await say("readiness", get("/health/ready"))
        await say("the console is not here", get("/console"))
        await say("any host", get("/v1/models", **{**_key("demo"), "host": "weir.example"}))
    return told.text


async def costs() -> str:
    """A tenant whose waiting work is bounded by its cost."""
    told = Transcript("The router with a tenants file: a bound of cost")
    text = TENANTS.read_text(encoding="utf-8").replace("cost_tokens: 200000", "cost_tokens: 300")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tenants.yaml"
        file.write_text(text, encoding="utf-8")
        async with standing(told, FakeWorker(hang, slots=1), tenants_file=file, admin_token="x" * 16) as stand:
            for tenant in ("demo", "acme"):
                client = await connect(stand.port)
                client.transport.write(post(CHAT, {**TEXTS[CHAT], "max_tokens": 200}, **_key(tenant)))
                await asyncio.sleep(0.01)
            for route, body in TEXTS.items():
                asked = post(route, {**body, "max_tokens": 200}, **_key("acme"), x_weir_deadline_ms="60000")
                await stand.say(f"the tenant's cost is used up: {route}", asked, within_s=0.05)
    return told.text


async def operator() -> str:
    """What the operator's token opens, and what stands beside it."""
    told = Transcript("The router with a tenants file: the metrics and admin listener")
    async with _keyed(told) as stand:
        say = stand.admin
        await say("metrics without a token", get("/metrics"))
        await say("metrics", get("/metrics", **OURS), page=True)
        await say("metrics, their head alone", request("HEAD", "/metrics", **OURS), page=True)
        await say("nothing", get("/nothing", **OURS))
        await say("no token", get("/admin/state"))
        await say("a wrong token", get("/admin/state", authorization="Bearer wrong"))
        await say("the services' token", get("/admin/state", **OURS))
        await say("a web page", get("/admin/state", **ADMIN, origin="http://localhost"))
        await say("the state", get("/admin/state", **ADMIN))
        await say("a level is held", post("/admin/level", {"class": "batch", "level": 2}, **ADMIN))
        await say("a level that there is not", post("/admin/level", {"level": 9}, **ADMIN))
        await say("a class that there is not", post("/admin/level", {"class": "royal", "level": 1}, **ADMIN))
        await say("the policy", get("/admin/policy", **ADMIN))
        await say("a mechanism is switched off", post("/admin/policy", {"fairness": False}, **ADMIN))
        await say("a tenant is paused", post("/admin/pause", {"tenant": "demo"}, **ADMIN))
        await stand.say("a paused tenant", post(CHAT, TEXTS[CHAT], **_key("demo")))
        await stand.say("a paused tenant, streamed", post(CHAT, {**TEXTS[CHAT], "stream": True}, **_key("demo")))
        await say("a tenant that there is not", post("/admin/pause", {"tenant": "nobody"}, **ADMIN))
        await say("a worker is drained", post("/admin/drain", {"worker": "worker-0"}, **ADMIN))
        await stand.say("nobody serves the model", post(CHAT, TEXTS[CHAT], **_key("nightly")))
        await say("a worker that there is not", post("/admin/drain", {"worker": "gpu"}, **ADMIN))
        await say("a drain that is taken back", post("/admin/drain", {"drain": False}, **ADMIN))
        await say("the wrong method", get("/admin/drain", **ADMIN))
        await say("nothing below /admin", get("/admin/nothing", **ADMIN))
        await say("the console's page", get("/console"), page=True)
        await say("the console's stream without a token", get("/console/events"))
        await say("the console's stream", get("/console/events", **ADMIN), within_s=0.1)
        await say("the router is drained", post("/admin/drain", {}, **ADMIN))
        await stand.say("after the drain", post(CHAT, TEXTS[CHAT], **_key("nightly")))
        for guess in range(11):
            await say(f"guess {guess + 2}", get("/admin/state", authorization=f"Bearer wrong-{guess}"), within_s=0.01)
    anywhere = {"metrics_host": "0.0.0.0", "inner_network": True}
    async with standing(told, FakeWorker(answer), **anywhere) as stand:
        await stand.admin("beyond loopback, without a token", get("/admin/state", host="router"))
    return told.text
