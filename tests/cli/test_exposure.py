"""What `weir up` publishes: the router where HOST says so, and nothing else; and the token between its parts."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from loadtests.storm.config import StormSettings
from services.cli import parts, replicas
from services.cli.config import LabSettings
from services.cli.console import open_console
from services.cli.errors import LabError
from services.cli.internal import kept, shown, token_of, with_token
from services.cli.parts import ServicePart
from services.governor.config import GovernorSettings
from services.retrieval.config import RetrievalSettings
from services.router.config import RouterSettings
from services.runtime.addresses import is_loopback
from services.runtime.apikey import new_key
from services.runtime.settings import ServiceSettings
from services.worker.config import WorkerSettings

TOKEN = "t0ken-of-sixteen-characters"
CLASSES: dict[str, type[ServiceSettings]] = {
    "services.router": RouterSettings,
    "services.retrieval": RetrievalSettings,
    "services.worker": WorkerSettings,
    "services.governor": GovernorSettings,
    "loadtests.storm": StormSettings,
}


def settings(tmp_path: Path, **chosen: Any) -> LabSettings:
    return LabSettings(_env_file=None, **{"data_dir": tmp_path, **chosen})  # type: ignore[call-arg]


def of(chosen: LabSettings) -> list[ServicePart]:
    """Every service of ours that `weir up` starts."""
    storm = [parts.storm(chosen, "redis://r")] if chosen.tenants_file is None else []
    return [
        *parts.workers(chosen),
        parts.retrieval(chosen, "postgresql://p/x", "redis://r"),
        parts.router(chosen),
        parts.governor(chosen, chosen.router_url),
        *storm,
    ]


def listening(
    chosen: LabSettings, outer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[str, str]]:
    """Part -> HOST and METRICS_HOST, as the service's own settings read them from what `weir up` passes on."""
    found = {}
    for part in of(chosen):
        with monkeypatch.context() as inside:
            for name, value in {**outer, **part.env}.items():
                inside.setenv(name, value)
            read = CLASSES[part.module](_env_file=None)  # type: ignore[call-arg]
            found[part.name] = (read.host, read.metrics_host)
    return found


def test_with_host_and_a_tenants_file_the_router_is_published_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(f"tenants: [{{id: acme, keys: ['{new_key()[1]}']}}]")
    chosen = with_token(settings(tmp_path, host="0.0.0.0", tenants_file=file, workers_count=2))
    found = listening(chosen, {"HOST": "0.0.0.0", "TENANTS_FILE": str(file)}, monkeypatch)
    print("\n".join(f"{host:>15} {metrics:>15} {name}" for name, (host, metrics) in found.items()))
    assert sorted(found) == ["governor", "retrieval", "router", "worker-0", "worker-1"]
    assert {name: host for name, (host, _) in found.items() if not is_loopback(host)} == {"router": "0.0.0.0"}
    assert all(is_loopback(metrics) for _, metrics in found.values())
    wide = {port.name for port in parts.ports(chosen) if not is_loopback(port.host)}
    assert wide == {"router"}


def test_the_governor_is_published_where_its_clients_have_tokens_to_show(tmp_path: Path) -> None:
    chosen = settings(tmp_path, host="0.0.0.0", governor_tokens=SecretStr(TOKEN))
    assert {part.name for part in of(chosen) if part.env["HOST"] == "0.0.0.0"} == {"router", "governor"}


def test_another_address_of_loopback_moves_all_parts(tmp_path: Path) -> None:
    chosen = settings(tmp_path, host="127.0.0.2")
    assert {part.env["HOST"] for part in of(chosen)} == {"127.0.0.2"}
    assert parts.router(chosen).env["RETRIEVAL_URL"].startswith("http://127.0.0.2:")


def test_each_start_makes_a_new_token_for_all_parts(tmp_path: Path) -> None:
    first, second = with_token(settings(tmp_path)), with_token(settings(tmp_path))
    (token,) = {part.env["INTERNAL_TOKEN"] for part in of(first)}
    assert len(token) >= 32
    assert {part.env["INTERNAL_TOKEN"] for part in of(second)} != {token}


def test_a_token_that_is_set_is_kept_and_none_is_none(tmp_path: Path) -> None:
    mine = with_token(settings(tmp_path, internal_token=SecretStr(TOKEN)))
    assert {part.env["INTERNAL_TOKEN"] for part in of(mine)} == {TOKEN}
    without = with_token(settings(tmp_path, internal_token=SecretStr("none")))
    assert all("INTERNAL_TOKEN" not in part.env for part in of(without))


def test_tools_of_the_same_user_find_the_token_while_the_stack_runs(tmp_path: Path) -> None:
    chosen = with_token(settings(tmp_path))
    outside = settings(tmp_path)
    assert token_of(outside) == ""
    with kept(chosen):
        assert stat.S_IMODE(chosen.token_file.stat().st_mode) == 0o600
        assert token_of(outside) == chosen.shared_token.decode()
        assert shown(token_of(outside)) == {"authorization": f"Bearer {chosen.shared_token.decode()}"}
    assert not chosen.token_file.exists()


def test_a_token_of_another_run_does_not_outlive_a_start_without_one(tmp_path: Path) -> None:
    chosen = settings(tmp_path, internal_token=SecretStr("none"))
    chosen.token_file.write_text("of-a-stack-that-was-killed")
    with kept(chosen):
        assert not chosen.token_file.exists()


def test_workers_for_a_router_elsewhere_are_not_started_for_everybody(tmp_path: Path) -> None:
    with pytest.raises(LabError) as caught:
        replicas.run(settings(tmp_path, host="0.0.0.0"), open_console(), prefix="w")
    assert any("INTERNAL_TOKEN" in note for note in caught.value.notes)
