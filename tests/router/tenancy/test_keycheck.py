"""A large body is read only from a client whose key is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from services.router import app
from services.router.config import RouterSettings
from services.router.tenancy.keycheck import key_before_body
from services.router.tenancy.tenants import FileTenants
from services.runtime.apikey import digest, written
from services.runtime.guard import SMALL_BODY_BYTES
from tests.runtime.rig import send
from tests.virtual import run, running_here


def file_of(folder: Path) -> Path:
    file = folder / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": [{"id": "a", "keys": [written(digest(b"key-of-a"))]}]}))
    return file


def head(*headers: str) -> bytes:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: t", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.parametrize("key", [[], ["authorization: Bearer key-of-b"], ["authorization: Basic a2V5"]])
@pytest.mark.parametrize("framing", [f"content-length: {SMALL_BODY_BYTES + 1}", "transfer-encoding: chunked"])
def test_a_large_body_without_a_known_key_is_refused_at_its_head(key: list[str], framing: str, tmp_path: Path) -> None:
    async def main() -> None:
        settings = RouterSettings(  # type: ignore[call-arg]  # pydantic-settings' own keyword
            _env_file=None, router_port=0, metrics_port=0, retrieval_url="http://127.0.0.1:1", probe_interval_s=60,
            drain_timeout_s=0.1, tenants_file=file_of(tmp_path),
        )  # fmt: skip
        async with running_here(app.build(settings)) as process:
            answer = await send(process.bound_port, head(framing, *key))  # and not a byte of the body
            top, _, body = answer.partition(b"\r\n\r\n")
            assert top.startswith(b"HTTP/1.1 401 ")
            assert b"connection: close" in top
            assert b"www-authenticate: Bearer" in top
            assert json.loads(body)["error"]["code"] == "invalid_api_key"
            metrics = await send(
                process.bound_metrics_port, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            )
            assert b'weir_http_rejections_total{code="invalid_api_key"} 1.0' in metrics
            small = await send(process.bound_port, head("content-length: 2", "connection: close", *key) + b"{}")
            assert small.startswith(b"HTTP/1.1 401 ")
            known = head("content-length: 20000", "connection: close", "authorization: Bearer key-of-a") + b"x" * 20_000
            assert (await send(process.bound_port, known)).startswith(b"HTTP/1.1 400 ")

    run(main)


def test_the_check_lets_a_known_key_and_a_small_body_pass(tmp_path: Path) -> None:
    class Asked:
        def __init__(self, key: bytes | None) -> None:
            self.key = key

        def header(self, name: bytes) -> bytes | None:
            return self.key if name == b"authorization" else None

    check = key_before_body(FileTenants(file_of(tmp_path)))
    assert check(Asked(b"Bearer key-of-a"), 1 << 20) is None  # type: ignore[arg-type]
    assert check(Asked(None), SMALL_BODY_BYTES) is None  # type: ignore[arg-type]
    assert check(Asked(None), SMALL_BODY_BYTES + 1) is not None  # type: ignore[arg-type]
