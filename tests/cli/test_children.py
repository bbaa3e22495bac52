"""Children: their logs, their ends, and that they cannot outlive the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from services.cli.child import Child, describe_exit
from services.cli.child_group import together
from services.cli.errors import LabError


def child(folder: Path, code: str, name: str = "part") -> Child:
    return Child(name, [sys.executable, "-c", code], env=dict(os.environ), log=folder / f"{name}.log")


def test_only_the_main_thread_may_fork_since_the_child_dies_with_the_thread(tmp_path: Path) -> None:
    refused: list[str] = []

    def attempt() -> None:
        try:
            child(tmp_path, "pass").spawn()
        except RuntimeError as error:
            refused.append(str(error))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert refused
    assert "main thread" in refused[0]


def test_an_exit_is_told_as_a_code_or_a_signal() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-signal.SIGKILL) == "killed by SIGKILL"


def test_the_first_of_several_failures_is_raised_as_itself() -> None:
    cancelled: list[str] = []

    async def fails() -> None:
        raise LabError("the disk is full")

    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append("waits")
            raise

    with pytest.raises(LabError, match="the disk is full"):
        asyncio.run(together(waits(), fails()))
    assert cancelled == ["waits"]
