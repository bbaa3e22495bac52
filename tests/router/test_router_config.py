"""Bad configuration: all faults at once, at start, in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.router.config import RouterSettings
from services.runtime.settings import load


def settings(**values: Any) -> RouterSettings:
    return load(RouterSettings, _env_file=None, **values)


def faults(capsys: pytest.CaptureFixture[str], **values: Any) -> str:
    with pytest.raises(SystemExit) as left:
        settings(**values)
    assert left.value.code == 2
    return capsys.readouterr().err


def test_every_fault_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = faults(capsys, router_port=99_999, max_inflight=0, log_level="LOUD", default_slo_ms=-1)
    assert said.startswith("4 setting(s) cannot be used:")
    for name in ("ROUTER_PORT=99999", "MAX_INFLIGHT=0", "LOG_LEVEL='LOUD'", "DEFAULT_SLO_MS=-1"):
        assert name in said


def test_a_default_beyond_the_maximum_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert "DEFAULT_SLO_MS exceeds MAX_DEADLINE_MS" in faults(capsys, default_slo_ms=9000, max_deadline_ms=8000)


def test_workers_are_named_by_their_place_in_the_list() -> None:
    specs = settings(workers="http://a:1, http://b:2/").worker_specs()
    assert [(spec.name, spec.kind, spec.url) for spec in specs] == [
        ("worker-0", "weir", "http://a:1"),
        ("worker-1", "weir", "http://b:2"),
    ]


def test_a_worker_list_of_both_kinds_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KEY", "k")
    listing = tmp_path / "workers.yaml"
    listing.write_text(
        "workers:\n"
        "  - {name: gpu-0, kind: weir, url: http://127.0.0.1:8010}\n"
        "  - {name: vllm-a, kind: openai, url: 'http://10.0.0.5:8000/v1', slots: 32, lookahead: 1, models: [m],"
        " api_key_env: VLLM_KEY}\n"
    )
    own, other = settings(workers_file=listing).worker_specs()
    assert (own.kind, own.slots) == ("weir", None)
    assert (other.slots, other.lookahead, other.models, other.api_key()) == (32, 1, ["m"], "k")


BROKEN = {
    "not there": (None, "No such file"),
    "not YAML": ("workers: [", "is not YAML"),
    "empty": ("", "valid dictionary"),
    "without workers": ("workers: []", "at least 1 item"),
    "an unknown kind": ("workers: [{name: a, kind: grpc, url: 'http://x'}]", "'weir' or 'openai'"),
    "an unknown field": ("workers: [{name: a, kind: weir, url: 'http://x', weight: 3}]", "WEIGHT"),
    "no address": ("workers: [{name: a, kind: weir, url: localhost}]", "not an http:// or https:// address"),
    "openai without slots": ("workers: [{name: a, kind: openai, url: 'http://x'}]", "needs `slots`"),
    "weir with slots": ("workers: [{name: a, kind: weir, url: 'http://x', slots: 3}]", "announces its own slots"),
    "a key that is not set": (
        "workers: [{name: a, kind: openai, slots: 1, url: 'http://x', api_key_env: NOT_SET_ANYWHERE}]",
        "NOT_SET_ANYWHERE, which is not set",
    ),
    "a key with a line break": (
        "workers: [{name: a, kind: openai, slots: 1, url: 'http://x', api_key_env: KEY_OF_TWO_LINES}]",
        "the key in KEY_OF_TWO_LINES has a line break: remove it",
    ),
    "a name that stands twice": (
        "workers: [{name: a, kind: weir, url: 'http://x'}, {name: a, kind: weir, url: 'http://y'}]",
        "duplicate names: a",
    ),
}


@pytest.mark.parametrize(("content", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_worker_list_says_what_is_wrong_and_where(
    content: str | None,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY_OF_TWO_LINES", "key\n")
    listing = tmp_path / "workers.yaml"
    if content is not None:
        listing.write_text(content)
    said = faults(capsys, workers_file=listing)
    assert says in said
    assert str(listing) in said


def test_a_secret_is_not_repeated_in_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    said = faults(capsys, retrieval_url=["s3cret"])
    assert "RETRIEVAL_URL" in said
    assert "s3cret" not in said


def test_faults_of_different_kinds_are_told_together(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text("tenants: [{id: acme}]")
    with pytest.raises(ValidationError) as refused:
        RouterSettings(
            _env_file=None,
            default_slo_ms=200_000,
            tenant_queue_size=1000,
            workers_file=tmp_path / "none.yaml",
            tenants_file=tenants,
        )
    for told in ("DEFAULT_SLO_MS", "TENANT_QUEUE_SIZE", "WORKERS_FILE", "TENANTS_FILE"):
        assert told in str(refused.value)


def test_several_processes_need_what_they_share_the_workers_through() -> None:
    with pytest.raises(ValidationError, match="ROUTER_PROCESSES=2: set EXCHANGE_URL"):
        RouterSettings(_env_file=None, router_processes=2)
    assert RouterSettings(_env_file=None, router_processes=2, exchange_url="redis://h").router_processes == 2
    assert RouterSettings(_env_file=None).router_processes == 1


def test_a_desk_needs_several_routers_and_lends_each_server_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = tmp_path / "workers.yaml"
    listing.write_text(
        "workers:\n"
        "  - {name: a, kind: openai, url: 'http://a/v1', desk: 'http://d/x'}\n"
        "  - {name: b, kind: openai, url: 'http://b/v1', desk: 'http://d/x'}\n"
    )
    alone = faults(capsys, workers_file=listing, default_slo_ms=600_000)
    assert "`desk` of a, b: a desk lends to several routers. Set EXCHANGE_URL, or give `slots` instead" in alone
    assert "DEFAULT_SLO_MS exceeds MAX_DEADLINE_MS" in alone, "all faults are named at once"
    shared = faults(capsys, workers_file=listing, exchange_url="redis://h")
    assert "a worker lends to a router once, and is listed twice: http://d/x" in shared


def test_several_processes_on_one_port_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.router.config.sys.platform", "darwin")
    with pytest.raises(ValidationError, match="need Linux"):
        RouterSettings(_env_file=None, router_processes=2, exchange_url="redis://h")


@pytest.mark.parametrize("count", [0, 65])
def test_processes_are_bounded(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"ROUTER_PROCESSES={count}" in faults(capsys, router_processes=count)
