"""HTTPS and mutual TLS on the router's public port, with a real client."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx2
import pytest
import trustme

from services.runtime.guard import GuardLimits
from services.runtime.http import Exchange
from services.runtime.serve import FineClockLoop, HttpListener, listening_socket
from services.runtime.tls import TlsFiles
from tests.router.rig import FakeWorker, answer, standing
from tests.runtime.rig import build


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, Path]:
    issued = authority.issue_cert("127.0.0.1", "localhost")
    names = {"tls_cert_file": tmp_path / "cert.pem", "tls_key_file": tmp_path / "key.pem"}
    for blob in issued.cert_chain_pems:
        blob.write_to_path(names["tls_cert_file"], append=True)
    issued.private_key_pem.write_to_path(names["tls_key_file"])
    return names


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def health_over_https(port: int, context: ssl.SSLContext) -> int:
    async with httpx2.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=20) as client:
        return (await client.get("/health")).status_code


def test_a_client_that_trusts_the_authority_is_answered_over_https(
    authority: trustme.CA, files: dict[str, Path]
) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), **files) as stand:
            context = client_context(authority)
            address = f"https://127.0.0.1:{stand.router.bound_port}"
            async with httpx2.AsyncClient(base_url=address, verify=context, timeout=20) as client:
                assert (await client.get("/health")).status_code == 200
                asked = {"messages": [{"role": "user", "content": "hi"}]}
                assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
            with pytest.raises(httpx2.ConnectError):
                await health_over_https(stand.router.bound_port, ssl.create_default_context())

    asyncio.run(main())


def test_a_handler_behind_https_reads_that_scheme(authority: trustme.CA, files: dict[str, Path]) -> None:
    schemes = []

    async def handler(exchange: Exchange) -> None:
        schemes.append(exchange.scheme)
        await exchange.reply(200, b"")

    async def main() -> None:
        built = build({("GET", "/health"): handler}, eager=["/health"])
        app = built.listener.app  # type: ignore[attr-defined]
        listener = HttpListener(app, GuardLimits(), 60.0, tls=TlsFiles(files["tls_cert_file"], files["tls_key_file"]))
        sock = listening_socket("127.0.0.1", 0, "PORT")
        await listener.open(sock)
        try:
            assert await health_over_https(sock.getsockname()[1], client_context(authority)) == 200
        finally:
            await listener.close(1.0)
            built.log.close()

    with asyncio.Runner(loop_factory=FineClockLoop) as runner:
        runner.run(main())
    assert schemes == ["https"]


def test_with_a_clients_authority_only_a_client_with_its_certificate_is_answered(
    authority: trustme.CA, files: dict[str, Path], tmp_path: Path
) -> None:
    clients = trustme.CA()
    ca = tmp_path / "clients.pem"
    clients.cert_pem.write_to_path(ca)

    async def main() -> None:
        async with standing(FakeWorker(answer), **files, tls_client_ca_file=ca) as stand:
            known = client_context(authority)
            clients.issue_cert("a-client").configure_cert(known)
            assert await health_over_https(stand.router.bound_port, known) == 200
            with pytest.raises(httpx2.TransportError):
                await health_over_https(stand.router.bound_port, client_context(authority))

    asyncio.run(main())
