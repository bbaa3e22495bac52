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


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
def test_a_page_loads_nothing_runs_nothing_and_stands_in_no_frame(path: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            page = await stand.client.get(path)
            policy = dict(
                part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert "unsafe" not in page.headers["content-security-policy"]
            assert page.headers["x-content-type-options"] == "nosniff"
            assert page.headers["referrer-policy"] == "no-referrer"
            if path != "/openapi.json":
                (style,) = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
                digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
                assert policy["style-src"] == f"'sha256-{digest}'"
                assert "<script" not in page.text

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
