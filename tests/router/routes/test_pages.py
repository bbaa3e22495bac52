"""What stands on the router's pages, and what its health says to whom."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
import yaml

from services.runtime.apikey import new_key
from tests.router.rig import FakeWorker, answer, standing
from tests.virtual import run


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_a_page_loads_and_runs_only_what_this_service_serves_and_stands_in_no_frame(path: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            page = await stand.client.get(path)
            policy = dict(
                part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["referrer-policy"] == "no-referrer"
            if path != "/openapi.json":
                for script in re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL):
                    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
                    assert f"'sha256-{digest}'" in policy["script-src"]
                assert "unsafe" not in policy["script-src"]
                sources = re.findall(r'(?:src|href)="([^"]*)"', page.text)
                assert sources
                for source in sources:
                    assert source.startswith("/docs/assets/") or source == "data:,", source
                    if source.startswith("/"):
                        assert (await stand.client.get(source)).status_code == 200

    run(main)


def test_the_front_page_leads_to_the_description() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            page = await stand.client.get("/")
            assert (page.status_code, page.headers["location"]) == (307, "/docs")

    run(main)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/responses", "use POST /v1/chat/completions"),
        ("/v1/responses/resp-1/cancel", "use POST /v1/chat/completions"),
        ("/v1/messages", "use POST /v1/chat/completions"),
        ("/v1/messages/count_tokens", "use POST /v1/chat/completions"),
        ("/v1/audio/speech", "/v1/embeddings and /v1/models"),
        ("/v1/v1/messages", "ends before /v1"),
        ("/chat/completions", "ends in /v1"),
        ("/models", "ends in /v1"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_other_clients_ask_for_is_not_found_and_the_answer_says_what_to_use(
    path: str, words: str, method: str
) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            told = await stand.client.request(method, path)
            assert told.status_code == 404
            error = told.json()["error"]
            assert error["code"] == "not_found"
            assert words in error["message"]
            plain = (await stand.client.request(method, "/nothing/v1/responses")).json()["error"]["message"]
            assert plain == "there is nothing at /nothing/v1/responses"

    run(main)


def test_health_names_workers_in_lab_mode_and_counts_them_with_tenants(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": [{"id": "acme", "keys": [new_key()[1]]}]}))

    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            told = (await stand.client.get("/health/ready")).json()
            assert told["workers"] == ["worker-0"]
        upstreams = tmp_path / "workers.yaml"
        async with standing(FakeWorker(answer)) as behind:
            entries = [
                {"name": "gpu-of-acme", "kind": "weir", "url": f"http://127.0.0.1:{behind.workers[0].port}"},
                {"name": "secret-gpu", "kind": "weir", "url": "http://127.0.0.1:1"},
            ]
            upstreams.write_text(yaml.safe_dump({"workers": entries}))
            async with standing(upstreams=str(upstreams), tenants_file=file) as stand:
                reply = await stand.client.get("/health/ready")
                told = reply.json()
                assert (reply.status_code, told["workers"]) == (200, 1)
                assert told["degraded"][0] == "1 of 2 workers"
                assert "gpu" not in reply.text

    run(main)
