"""Children as processes: their logs, their ends, and the order in which they are stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cli.child import Child, trim
from services.cli.child_group import ChildGroup
from services.cli.errors import LabError

IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"


def child(folder: Path, code: str, name: str = "part") -> Child:
    return Child(name, [sys.executable, "-c", code], env=dict(os.environ), log=folder / f"{name}.log")


def test_a_child_that_dies_is_named_with_its_exit_code_its_last_words_and_its_log(tmp_path: Path) -> None:
    async def run() -> None:
        dying = child(tmp_path, "print('no such model: x'); raise SystemExit(7)", "worker-0")
        dying.spawn()
        child_group = ChildGroup()
        child_group.take(dying, tier=0, stop_within_s=1)
        with pytest.raises(LabError) as caught:
            await asyncio.wait_for(child_group.watch(), 20)
        assert "worker-0 ended (exit code 7)" in caught.value.message
        assert str(dying.log) in caught.value.message
        assert caught.value.notes == ("no such model: x",)

    asyncio.run(run())


def test_a_child_that_the_others_do_without_is_told_of_once_and_nothing_ends(tmp_path: Path) -> None:
    async def run() -> None:
        printed: list[str] = []
        child_group = ChildGroup(on_lost=printed.append)
        storm, router = child(tmp_path, "raise SystemExit(7)", "storm"), child(tmp_path, "input()", "router")
        for each, vital in ((storm, False), (router, True)):
            each.spawn()
            child_group.take(each, tier=0, stop_within_s=1, vital=vital)
        with pytest.raises(LabError, match="router ended"):  # whose input is at its end, so it is the one that matters
            await asyncio.wait_for(child_group.watch(), 20)
        while storm.running:
            await asyncio.sleep(0.01)
        with pytest.raises(LabError, match="router ended"):
            await asyncio.wait_for(child_group.watch(), 20)
        assert [line.partition(":")[0] for line in printed] == [
            "storm ended (exit code 7); the other processes continue"
        ]

    asyncio.run(run())


def test_tiers_stop_in_reverse_and_a_deaf_child_is_killed_and_named(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    ends = tmp_path / "ends"
    notes = f"open({str(ends)!r}, 'a').write"
    handler = "signal.signal(signal.SIGTERM, lambda *_: (%s('%s '), os._exit(0)))"

    def polite(name: str) -> str:
        return f"import os, signal, time; {handler % (notes, name)}; print('up', flush=True); time.sleep(600)"

    front, store = child(tmp_path, polite("front"), "front"), child(tmp_path, polite("store"), "store")
    deaf = child(tmp_path, f"{IGNORES_SIGTERM}; time.sleep(600)", "deaf")
    child_group = ChildGroup()
    for tier, each in enumerate((store, deaf, front)):
        each.spawn()
        child_group.take(each, tier, stop_within_s=20 if each is not deaf else 0.05)
    wait_until(lambda: all(each.tail() for each in (store, deaf, front)))
    assert asyncio.run(child_group.stop()) == ["deaf"]
    assert ends.read_text().split() == ["front", "store"]
    assert not any(each.running for each in (store, deaf, front))


def test_stopping_what_has_never_started_or_has_ended_does_nothing(tmp_path: Path) -> None:
    idle = child(tmp_path, "pass")
    assert idle.stop(1)
    idle.spawn()
    assert idle.process is not None
    idle.process.wait()
    assert idle.stop(1)


def test_a_command_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    missing = Child("router", [str(tmp_path / "nowhere")], env={}, log=tmp_path / "router.log")
    with pytest.raises(LabError, match=r"router could not be started: .*nowhere: No such file"):
        missing.spawn()


def test_a_new_run_keeps_the_last_log_and_a_long_log_is_cut(tmp_path: Path) -> None:
    for word in ("first", "second"):
        run = child(tmp_path, f"print('{word}')")
        run.spawn()
        assert run.process is not None
        run.process.wait()
    assert run.log.read_text() == "second\n"
    assert run.log.with_name("part.log.1").read_text() == "first\n"
    run.log.write_bytes(b"x" * 1000 + b"y" * 1000)
    assert not trim(run.log, limit_bytes=2000)
    assert trim(run.log, limit_bytes=1000)
    assert run.log.read_bytes() == b""
    assert run.log.with_name("part.log.1").read_bytes() == b"y" * 500


def test_a_log_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    """The one that is kept and the one that was cut as well, and those that an earlier version left."""
    before = os.umask(0o022)
    try:
        talker = child(tmp_path / "logs", "print('tenant acme' * 100)")
        talker.log.parent.mkdir()
        talker.log.parent.chmod(0o755)
        talker.log.write_text("of an earlier version", encoding="ascii")
        talker.log.chmod(0o644)
        talker.spawn()
        assert talker.wait() == 0
        old = talker.log.with_name("part.log.1")
        assert {file.stat().st_mode & 0o777 for file in (talker.log, old)} == {0o600}
        old.unlink()
        assert trim(talker.log, limit_bytes=100)
        assert old.stat().st_mode & 0o777 == 0o600
        other = child(tmp_path / "new" / "logs", "pass")
        other.spawn()
        assert other.wait() == 0
        assert (tmp_path / "new" / "logs").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
