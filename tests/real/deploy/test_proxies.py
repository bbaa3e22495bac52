"""HAProxy, nginx and Envoy themselves, with the example's files, before a real router, over TLS."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import openai
import pytest
import trustme
from aiohttp import web

from loadtests.cluster.processes import Process, free_ports, python, until_ready
from loadtests.paths import ROOT
from services.router.config import RouterSettings
from services.router.tenancy.keys import EXAMPLE_KEYS
from tests.runtime.rig import until

EXAMPLE = ROOT / "deploy" / "examples" / "vllm"
MODEL = "the-model"
ALSO_IN = "/usr/sbin:/usr/local/sbin"
WITHIN_S = 60.0
ANSWERED = {
    "id": "a", "object": "chat.completion", "created": 1, "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "A weir."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}  # fmt: skip


@dataclass(frozen=True)
class Proxy:
    """A proxy, its file of the example, and its commands, in the folder of that file."""

    name: str
    file: str
    checks: tuple[str, ...]
    runs: tuple[str, ...]
    relays_early_answers: bool = True
    """To a client of HTTP/1.1 that is still sending its body. Envoy closes the connection with the body unread."""

    @property
    def program(self) -> str | None:
        return shutil.which(self.name) or shutil.which(self.name, path=ALSO_IN)


PROXIES = (
    Proxy("haproxy", "haproxy.cfg", ("-c", "-f", "haproxy.cfg"), ("-db", "-f", "haproxy.cfg")),
    Proxy("nginx", "nginx.conf", ("-t", "-p", ".", "-c", "nginx.conf"),
          ("-p", ".", "-c", "nginx.conf", "-g", "daemon off;")),
    Proxy("envoy", "envoy.yaml", ("--mode", "validate", "-c", "envoy.yaml"),
          ("-c", "envoy.yaml", "--base-id", "79", "--concurrency", "1", "--log-level", "warn"),
          relays_early_answers=False),
)  # fmt: skip


@pytest.fixture(params=PROXIES, ids=lambda proxy: proxy.name)
def proxy(request: pytest.FixtureRequest) -> Proxy:
    found: Proxy = request.param
    if found.program is None:
        pytest.skip(f"{found.name} is not installed")
    return found


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def folder(authority: trustme.CA, tmp_path: Path) -> Path:
    """The example, copied, with a certificate."""
    shutil.copytree(EXAMPLE, tmp_path / "fleet")
    tls = tmp_path / "fleet" / "tls"
    tls.mkdir(exist_ok=True)
    issued = authority.issue_cert("127.0.0.1", "localhost")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    (tls / "cert.pem").write_bytes(chain)
    (tls / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (tls / "site.pem").write_bytes(chain + issued.private_key_pem.bytes())
    return tmp_path / "fleet"


def put(folder: Path, name: str, changes: Mapping[str, str]) -> None:
    """Change a file of the example. Each text has to be there."""
    file = folder / name
    text = file.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text, f"{name}: {old}"
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")


@dataclass
class Server:
    """An inference server: its stream has a first piece, and the rest once `opened`."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    left: int = 0
    asked: list[dict[str, object]] = field(default_factory=list)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked)
        self.running += 1
        try:
            return await self._streamed(request) if asked.get("stream") else await self._whole()
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.running -= 1

    async def _whole(self) -> web.Response:
        await self.opened.wait()
        return web.json_response(ANSWERED)

    async def _streamed(self, request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for number, text in enumerate(("A ", "weir ", "holds.")):
            if number:
                await self.opened.wait()
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop" if number == 2 else None}
            event = {**ANSWERED, "object": "chat.completion.chunk", "choices": [choice]}
            await reply.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply


@asynccontextmanager
async def serving(server: Server, port: int) -> AsyncIterator[None]:
    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.get("/v1/models", server.models), web.post("/v1/chat/completions", server.chat)])
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield
    finally:
        server.opened.set()
        await runner.cleanup()


@dataclass
class Fleet:
    server: Server
    url: str
    trust: ssl.SSLContext

    def client(self) -> openai.AsyncOpenAI:
        """OpenAI's package over TLS; it tries nothing twice."""
        http = openai.DefaultAsyncHttpxClient(verify=self.trust, trust_env=False)
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=EXAMPLE_KEYS[0], max_retries=0, timeout=WITHIN_S, http_client=http
        )

    def plain(self) -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {EXAMPLE_KEYS[0]}", "content-type": "application/json"}
        return httpx2.AsyncClient(
            base_url=self.url, verify=self.trust, trust_env=False, timeout=WITHIN_S, headers=headers
        )


@asynccontextmanager
async def fleet(proxy: Proxy | None, folder: Path, authority: trustme.CA) -> AsyncIterator[Fleet]:
    """A server, the router with the example's settings, and the proxy before it; without one the router ends TLS."""
    engine, router, metrics, public = free_ports(4)
    put(folder, "workers.yaml", {f"10.0.0.1{number}:8200": f"127.0.0.1:{engine}" for number in range(1, 5)})
    settings = (folder / "router.env").read_text(encoding="utf-8")
    last = f"ROUTER_PORT={router}\nMETRICS_PORT={metrics}\nDRAIN_DELAY_S=0\nDRAIN_TIMEOUT_S=2\n"
    if proxy is None:
        settings += (folder / "tls.env").read_text(encoding="utf-8")
        last += f"HOST=127.0.0.1\nROUTER_PORT={public}\n"  # the example's keys are for this machine only
    (folder / ".env").write_text(settings + last, encoding="utf-8")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    server = Server()
    processes = [Process("router", python("-m", "services.router"), {"PYTHONPATH": str(ROOT)}, folder)]
    if proxy is not None:
        put(folder, proxy.file, router_and_public(proxy, router, public))
        processes.append(Process(proxy.name, [str(proxy.program), *proxy.runs], {}, folder))
    async with serving(server, engine):
        try:
            processes[0].start()
            await until_ready(processes[0], f"http://127.0.0.1:{metrics}/metrics", WITHIN_S)
            for other in processes[1:]:
                other.start()
            made = Fleet(server, f"https://127.0.0.1:{public}", trust)
            await ready(made, processes[-1])
            yield made
        finally:
            server.opened.set()
            for process in reversed(processes):
                await process.stop()


def router_and_public(proxy: Proxy, router: int, public: int) -> dict[str, str]:
    if proxy.name == "envoy":
        ports = {"port_value: 8443": f"port_value: {public}", "port_value: 8000": f"port_value: {router}"}
        return {**ports, "address: 0.0.0.0": "address: 127.0.0.1"}
    ports = {
        "haproxy": {"bind :8443": f"bind 127.0.0.1:{public}"},
        "nginx": {"listen 8443": f"listen 127.0.0.1:{public}"},
    }
    return {**ports[proxy.name], "127.0.0.1:8000": f"127.0.0.1:{router}"}


async def ready(made: Fleet, front: Process) -> None:
    """Wait until the router is reached over TLS with the model in its list."""
    async with made.plain() as client:
        async with asyncio.timeout(WITHIN_S):
            while True:
                front.check()
                try:
                    if MODEL in (await client.get("/v1/models")).text:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.05)


def test_the_proxy_itself_accepts_the_file(proxy: Proxy, folder: Path) -> None:
    checked = subprocess.run(
        [str(proxy.program), *proxy.checks], cwd=folder, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    output = (checked.stdout + checked.stderr).lower()
    assert checked.returncode == 0, output
    assert "[warn" not in output
    assert "deprecated" not in output


async def streams(made: Fleet) -> None:
    """The rest of the answer is computed only once the client has read its beginning."""
    async with made.client() as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "What holds?"}], stream=True
        )
        read = ""
        async for chunk in stream:
            read += chunk.choices[0].delta.content or "" if chunk.choices else ""
            if read and not made.server.opened.is_set():
                assert read == "A "
                made.server.opened.set()
        assert read == "A weir holds."


async def leaves(made: Fleet, *, stream: bool) -> None:
    """The server sees that the client has gone, within the same request."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Wait."}], "stream": stream}
    async with made.plain() as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=asked))
        await until(lambda: made.server.running == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: made.server.running == 0)
    assert made.server.left == 1


async def large_bodies(made: Fleet, *, told: bool) -> None:
    """A body of the largest size arrives; of a larger one the router itself says so, if the client is `told`."""
    largest = RouterSettings.model_fields["max_body_bytes"].default
    made.server.opened.set()
    frame = json.dumps({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": ""}]}).encode()
    async with made.plain() as client:
        whole = frame.replace(b'""', b'"' + b"x" * (largest - len(frame)) + b'"')
        assert len(whole) == largest
        fits = await client.post("/v1/chat/completions", content=whole)
        assert fits.status_code == 200, fits.text[:300]
        try:
            over = await client.post("/v1/chat/completions", content=whole + b" ")
        except httpx2.TransportError:
            assert not told
        else:
            assert over.status_code == 413
            assert over.json()["error"]["message"]


async def rejections(made: Fleet) -> None:
    """Status, headers and body of a rejection are the router's own."""
    async with made.plain() as client:
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        refused = await client.post("/v1/chat/completions", json=asked, headers={"authorization": "Bearer none"})
        assert refused.status_code == 401
        assert refused.json()["error"]["message"] == "unknown API key"
        assert refused.headers["x-request-id"]
        assert made.server.asked == []


async def everything(made: Fleet, *, told: bool = True) -> None:
    await rejections(made)
    await streams(made)
    for number, stream in enumerate((False, True)):
        made.server.opened.clear()
        made.server.left = 0
        before = len(made.server.asked)
        await leaves(made, stream=stream)
        assert len(made.server.asked) == before + 1, number  # and it was asked once
    await large_bodies(made, told=told)


def test_behind_the_proxy_streams_flow_leavers_leave_and_rejections_are_the_routers(
    proxy: Proxy, folder: Path, authority: trustme.CA
) -> None:
    async def main() -> None:
        async with fleet(proxy, folder, authority) as made:
            await everything(made, told=proxy.relays_early_answers)

    asyncio.run(main())


def test_the_router_ends_tls_itself_with_the_same_settings(folder: Path, authority: trustme.CA) -> None:
    async def main() -> None:
        async with fleet(None, folder, authority) as made:
            await everything(made)

    asyncio.run(main())
