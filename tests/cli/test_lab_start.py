"""What `weir up` decides before it starts anything, and how it speaks."""

from __future__ import annotations

import io
import json
import os
import pwd
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from services.cli import identity, parts
from services.cli.__main__ import main
from services.cli.config import GOVERNOR_METRICS_OFFSET, LabSettings
from services.cli.display import LiveDisplay, PlainDisplay, display_for
from services.cli.errors import LabError, complain
from services.cli.lease import Lease, StackNote, clear, running_pid, running_stack
from services.cli.supervisor import Supervisor
from services.cli.up import refuse_taken_ports
from services.cli.welcome import welcome
from tests.ports import metrics_of, stack_ports

LOOPBACK = {"HOST": "127.0.0.1", "METRICS_HOST": "127.0.0.1"}


def settings(tmp_path: Path, **chosen: Any) -> LabSettings:
    """On free ports, in a folder of its own, whatever .env says."""
    values = {"data_dir": tmp_path, "workers_count": 1, **stack_ports(), **chosen}
    return LabSettings(_env_file=None, **values)  # type: ignore[call-arg]  # pydantic-settings' own argument


@pytest.mark.sockets
def test_no_part_that_is_tested_here_shares_a_port_with_anothers_metrics() -> None:
    ports = stack_ports()
    metrics = metrics_of(ports)
    assert len({*ports.values(), *metrics}) == len(ports) + len(metrics)


@pytest.mark.sockets
def test_all_taken_ports_are_named_at_once_with_their_holder_and_a_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        taken = first.getsockname()[1], second.getsockname()[1]
        chosen = settings(tmp_path, embedded_postgres_port=taken[0], embedded_redis_port=taken[1])
        with pytest.raises(LabError) as caught:
            refuse_taken_ports(chosen)
    notes = "\n".join(caught.value.notes)
    assert f"{taken[0]} (PostgreSQL): held by" in notes
    assert f"{taken[1]} (Valkey): held by" in notes
    assert f"pid {os.getpid()}" in notes
    assert f"EMBEDDED_POSTGRES_PORT={taken[0] + 100}" in caught.value.message


@pytest.mark.sockets
def test_two_parts_on_one_port_are_refused_before_anything_starts(tmp_path: Path) -> None:
    chosen = settings(tmp_path, router_port=8010, worker_port=8009, workers_count=2)
    with pytest.raises(LabError, match="share a port") as caught:
        refuse_taken_ports(chosen)
    assert any("router (ROUTER_PORT)" in note and "worker-1 (WORKER_PORT)" in note for note in caught.value.notes)


@pytest.mark.sockets
def test_a_store_or_worker_of_ones_own_is_used_and_none_is_started(tmp_path: Path) -> None:
    chosen = settings(tmp_path, postgres_url="postgresql://db/x", redis_url="redis://r", workers="http://gpu:1")
    assert {port.name for port in parts.ports(chosen)} == {
        "router",
        "router's metrics",
        "retrieval",
        "retrieval's metrics",
        "governor",
        "governor's metrics",
        "storm",
        "storm's metrics",
    }
    assert parts.workers(chosen) == []
    assert "WORKERS" not in parts.router(chosen).env


@pytest.mark.sockets
def test_each_part_learns_its_port_its_metrics_port_and_its_peers_from_its_environment(tmp_path: Path) -> None:
    chosen = settings(tmp_path, worker_port=8110, workers_count=2, retrieval_port=8101)
    assert [part.env for part in parts.workers(chosen)] == [
        {"WORKER_NAME": "worker-0", "WORKER_PORT": "8110", "METRICS_PORT": "9110", **LOOPBACK},
        {"WORKER_NAME": "worker-1", "WORKER_PORT": "8111", "METRICS_PORT": "9111", **LOOPBACK},
    ]
    router = parts.router(chosen).env
    assert router["WORKERS"] == "http://127.0.0.1:8110,http://127.0.0.1:8111"
    assert router["RETRIEVAL_URL"] == "http://127.0.0.1:8101"


@pytest.mark.sockets
def test_the_governor_stands_before_this_router_until_somebody_says_otherwise(tmp_path: Path) -> None:
    chosen = settings(tmp_path, governor_port=7877)
    part = parts.governor(chosen, "http://127.0.0.1:8100")
    assert part.env == {
        "GOVERNOR_PORT": "7877",
        "METRICS_PORT": "9107",
        "GOVERNOR_UPSTREAM_URL": "http://127.0.0.1:8100/v1/completions",
        **LOOPBACK,
    }
    assert part.ready_url == "http://127.0.0.1:9107/health/ready"
    elsewhere = settings(tmp_path, governor_upstream_url="http://gpu:9/infer", metrics_host="::")
    part = parts.governor(elsewhere, "http://127.0.0.1:8100")
    assert part.env["GOVERNOR_UPSTREAM_URL"] == "http://gpu:9/infer"
    assert part.ready_url.startswith("http://127.0.0.1:")


@pytest.mark.sockets
def test_the_storm_bench_is_told_of_this_stack_and_is_not_there_with_tenants(tmp_path: Path) -> None:
    chosen = settings(tmp_path, router_port=8100, worker_port=8110, workers_count=2, storm_port=8190)
    part = parts.storm(chosen, "redis://:secret@127.0.0.1:8379/0")
    assert part.env == {
        "STORM_PORT": "8190",
        "METRICS_PORT": "9108",
        "STORM_ROUTER_URL": "http://127.0.0.1:8100",
        "STORM_METRICS_URL": "http://127.0.0.1:9100",
        "STORM_FAULT_URLS": "http://127.0.0.1:9110,http://127.0.0.1:9111",
        "WORKERS": "http://127.0.0.1:8110,http://127.0.0.1:8111",
        "REDIS_URL": "redis://:secret@127.0.0.1:8379/0",
        **LOOPBACK,
    }
    assert parts.router(chosen).env["STORM_URL"] == "http://127.0.0.1:8190"
    with_tenants = settings(tmp_path, tenants_file=tmp_path / "tenants.yaml")
    assert "STORM_URL" not in parts.router(with_tenants).env
    assert "storm" not in {port.name for port in parts.ports(with_tenants)}


@pytest.mark.sockets
def test_a_worker_with_a_real_model_is_not_slowed(tmp_path: Path) -> None:
    assert parts.storm(settings(tmp_path, engine="torch"), "").env["STORM_FAULT_URLS"] == "none"


@pytest.mark.sockets
def test_the_way_out_moves_the_governor_whichever_of_its_ports_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] - GOVERNOR_METRICS_OFFSET
        with pytest.raises(LabError, match=f"GOVERNOR_PORT={min(port + 100, 65535)}"):
            refuse_taken_ports(settings(tmp_path, governor_port=port))


def test_without_a_terminal_there_is_one_plain_line_for_each_event() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40)
    display = display_for(console, ["PostgreSQL", "corpus"])
    assert isinstance(display, PlainDisplay)
    with display.shown():
        display.starting("PostgreSQL", "127.0.0.1:8432", "a new database, which takes a moment longer than an old one")
        display.ready("PostgreSQL", os.getpid())
        display.starting("corpus", "docs")
        for done in range(101):
            display.progress("corpus", done, 100)
        display.skipped("corpus", "no folder docs here")
    complain(console, LabError("It broke.", notes=("the last line of its log",)))
    text = out.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert lines[0].startswith("starting  PostgreSQL  127.0.0.1:8432")
    assert lines[0].endswith("an old one")
    assert f"pid {os.getpid()}" in lines[1]
    assert sum(line.startswith("working") for line in lines) == 10
    assert lines[-2:] == ["✗ It broke.", "    the last line of its log"]


def test_on_a_terminal_the_table_fills_in() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    display = display_for(console, ["router", "corpus"])
    assert isinstance(display, LiveDisplay)
    display.starting("router", "127.0.0.1:8000")
    display.ready("router", os.getpid())
    display.starting("corpus", "docs")
    display.progress("corpus", 3, 12)
    console.print(display.table())
    text = out.getvalue()
    assert "✓" in text
    assert "127.0.0.1:8000" in text
    assert "3/12" in text


@pytest.mark.sockets
def test_the_welcome_names_every_address_and_commands_that_can_be_copied(tmp_path: Path) -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(
        welcome(settings(tmp_path, router_port=8100, governor_port=7877), 3.2), soft_wrap=True
    )
    text = out.getvalue()
    for expected in (
        "http://127.0.0.1:8100/console",
        "http://127.0.0.1:8100/v1",
        "http://127.0.0.1:9100/metrics",
        "127.0.0.1:7877",
        "ready in 3.2 s",
    ):
        assert expected in text
    (curl,) = (line for line in text.splitlines() if "curl" in line)
    body = curl.split("-d ")[1].strip().strip("'")
    assert json.loads(body)["query"]


def test_what_the_lab_makes_can_be_entered_by_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = tmp_path / "data"
        with Lease(folder):
            (folder / "logs").mkdir()
            (folder / "logs").chmod(0o755)  # as an earlier version made it
            Supervisor(Console(), [], folder / "logs", leave_s=1.0)
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / "logs").stat().st_mode & 0o777 == 0o700
            assert (folder / "weir.pid").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_folder_of_roots_is_opened_for_passing_through_only_where_another_user_must(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    identity._open_for_passing(folder)
    assert folder.stat().st_mode & 0o777 == 0o711


def test_postgres_has_a_user_of_its_own_where_the_machine_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"nobody": 65534}

    def getpwnam(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", users[name], users[name], "", "/", "/bin/false"))

    monkeypatch.setattr(identity.pwd, "getpwnam", getpwnam)
    assert identity._stand_in().pw_name == "nobody"
    users["weir"] = 990
    assert identity._stand_in().pw_name == "weir"


def test_one_stack_per_folder_and_the_second_is_told_by_whom(tmp_path: Path) -> None:
    assert running_pid(tmp_path) is None
    with Lease(tmp_path) as lease:
        assert running_pid(tmp_path) == os.getpid()
        assert running_stack(tmp_path) is None
        note = StackNote(
            os.getpid(), "http://r", "http://s", ["http://w"], "postgresql://u:secret@h/d", "redis://h", "h:7"
        )
        lease.publish(note)
        assert running_stack(tmp_path) == note
        assert stat.S_IMODE((tmp_path / "stack.json").stat().st_mode) == 0o600
        with pytest.raises(LabError, match=rf"already runs .*pid {os.getpid()}"), Lease(tmp_path):
            pass
        with pytest.raises(LabError, match="weir down"):
            clear(tmp_path)
    assert running_pid(tmp_path) is None


def test_a_pid_file_from_a_killed_supervisor_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "weir.pid").write_text(str(os.getpid()))
    (tmp_path / "stack.json").write_text("{}")
    assert running_pid(tmp_path) is None
    assert running_stack(tmp_path) is None
    with Lease(tmp_path):
        assert running_pid(tmp_path) == os.getpid()


def test_clean_data_removes_what_the_lab_keeps_and_nothing_else(tmp_path: Path) -> None:
    for name in ("postgres", "logs", "mine"):
        (tmp_path / name).mkdir()
    assert clear(tmp_path) == ["postgres", "logs"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LabError, match="DATA_DIR"), Lease(tmp_path / "data"):
        pass


def test_a_file_where_the_folder_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(LabError, match="DATA_DIR"), Lease(tmp_path / "data"):
        pass


def test_the_command_line_says_what_is_wrong_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["weir", "ingest", "docs"])
    for name in ("POSTGRES_URL", "DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    assert "weir up" in capsys.readouterr().err.replace("\n", " ")
