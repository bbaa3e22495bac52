"""DNS rebinding and cross-site requests against a router on loopback, over a real connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr

from services.router.workers.connect import connect
from services.router.workers.workersfile import WorkerSpec
from services.runtime.apikey import new_key
from tests.router.rig import FakeWorker, Stand, answer, error_of, standing
from tests.virtual import run

EVIL = "rebind.attacker.example"
CHAT = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
ROUTES = (
    ("GET", "/documents"), ("POST", "/ask"), ("DELETE", "/documents/secret.txt"), ("PUT", "/documents/a"),
    ("GET", "/console/events"), ("GET", "/console"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions"),
    ("GET", "/health"), ("GET", "/health/ready"), ("GET", "/"), ("GET", "/nowhere"),
)  # fmt: skip
TOKEN = "t0ken-of-sixteen-characters"


def keyed(tmp_path: Path) -> tuple[Path, str]:
    key, digest = new_key()
    file = tmp_path / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": [{"id": "acme", "keys": [digest]}]}))
    return file, key


async def chat(stand: Stand, **headers: str) -> Any:
    return await stand.chat(headers=headers)


def test_a_rebound_page_reads_asks_and_deletes_nothing_of_a_lab_router() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            port = stand.router.bound_port
            for method, path in ROUTES:
                named = {"host": f"{EVIL}:{port}", "origin": f"http://{EVIL}:{port}"}
                reply = await stand.client.request(method, path, headers=named, content=CHAT)
                assert reply.status_code == 421, path
                assert error_of(reply)["code"] == "misdirected_request"
            rebound = await stand.metrics.get("/metrics", headers={"host": EVIL})
            assert rebound.status_code == 421
            assert stand.workers[0].running == 0

    run(main)


def test_a_cross_site_post_costs_nothing() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            for origin in (f"http://{EVIL}", "null"):
                reply = await chat(stand, origin=origin, **{"content-type": "text/plain"})
                assert (reply.status_code, error_of(reply)["code"]) == (403, "forbidden")

    run(main)


def test_the_names_by_which_clients_call_a_router_on_this_machine_are_taken() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            port = stand.router.bound_port
            for host in (
                f"127.0.0.1:{port}",
                f"localhost:{port}",
                f"LOCALHOST:{port}",
                f"localhost.:{port}",
                f"[::1]:{port}",
            ):
                assert (await chat(stand, host=host)).status_code == 200
                assert (await chat(stand, host=host, origin=f"http://{host}")).status_code == 200
        async with standing(FakeWorker(answer), allowed_hosts="weir.example.org") as stand:
            assert (await chat(stand, host="weir.example.org")).status_code == 200
            assert (await chat(stand, host="example.org")).status_code == 421

    run(main)


def test_with_tenants_the_key_decides_and_not_the_name(tmp_path: Path) -> None:
    file, key = keyed(tmp_path)

    async def main() -> None:
        async with standing(FakeWorker(answer), tenants_file=file) as stand:
            assert (await chat(stand, host="api.example.org")).status_code == 401
            shown = {"authorization": f"Bearer {key}"}
            assert (
                await chat(stand, host="api.example.org", origin="https://app.example.org", **shown)
            ).status_code == 200
            rebound = await stand.metrics.get("/metrics", headers={"host": EVIL})
            assert rebound.status_code == 421  # it names the tenants

    run(main)


def test_the_token_opens_metrics_and_admin_and_nothing_else_does(tmp_path: Path) -> None:
    file, _ = keyed(tmp_path)

    async def main() -> None:
        async with standing(FakeWorker(answer), tenants_file=file, internal_token=SecretStr(TOKEN)) as stand:
            shown = {"authorization": f"Bearer {TOKEN}"}
            for path in ("/metrics", "/admin/state", "/console/events", "/nowhere"):
                for wrong in ({}, {"authorization": f"Bearer {TOKEN}x"}):
                    assert (await stand.metrics.get(path, headers=wrong)).status_code == 401, path
            assert (await stand.metrics.get("/metrics", headers=shown)).status_code == 200
            assert (await stand.metrics.get("/admin/state", headers=shown)).status_code == 200
            assert (await stand.metrics.get("/console")).status_code == 200  # the page that asks for it
            assert (await stand.metrics.get("/console", headers={"host": EVIL})).status_code == 421

    run(main)


def test_the_router_shows_the_token_to_weirs_own_workers_and_to_no_other_server() -> None:
    ours = WorkerSpec(name="a", kind="weir", url="http://127.0.0.1:1")
    theirs = WorkerSpec(name="b", kind="openai", url="http://127.0.0.1:1/v1", slots=1, models=["m"])
    assert TOKEN.encode() in connect(ours, 1, TOKEN.encode()).upstream._pool._host_line  # type: ignore[attr-defined]
    assert TOKEN.encode() not in connect(theirs, 1, TOKEN.encode()).upstream._pool._host_line  # type: ignore[attr-defined]
