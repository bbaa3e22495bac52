"""A crew's patience: what loads may take its time and says so, what never comes is given up, and all are stopped."""

from __future__ import annotations

import asyncio
import http.server
import io
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from services.cli import supervisor
from services.cli.parts import ServicePart
from services.cli.supervisor import EXIT_FAILED, StartPlan, Supervisor


class Loading:
    """What the part's port answers: 503 until it has loaded."""

    def __init__(self) -> None:
        self.done = threading.Event()
        done = self.done

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if done.is_set() else 503)
                self.end_headers()
                self.wfile.write(b"it reads its weights")

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def loading() -> Iterator[Loading]:
    there = Loading()
    serving = threading.Thread(target=there.server.serve_forever)
    serving.start()
    yield there
    there.server.shutdown()
    there.server.server_close()
    serving.join()


@pytest.fixture
def part(tmp_path: Path, loading: Loading) -> ServicePart:
    """A process that stays, and whose port answers as `loading` says."""
    (tmp_path / "stays.py").write_text("import time; time.sleep(600)")
    port = loading.server.server_address[1]
    return ServicePart(
        "worker-0", "stays", "127.0.0.1", port, {"PYTHONPATH": str(tmp_path)}, "some/model on cpu", 600.0
    )


def play(folder: Path, start: Callable[[Supervisor], Coroutine[Any, Any, None]]) -> tuple[int, str]:
    """The exit code of a story, and what it printed. It ends by itself once it has started."""
    out = io.StringIO()

    async def run() -> int:
        played = Supervisor(Console(file=out, width=160), ["worker-0"], folder, leave_s=1)

        def ending() -> Text:
            for watched in played.child_group.children:
                watched.child.kill()  # so that the story ends: a part has died
            return Text("all is there")

        return await played.play(StartPlan(lambda: start(played), ending))

    return asyncio.run(run()), out.getvalue()


def test_a_part_that_loads_says_so_now_and_then_until_it_is_ready(
    part: ServicePart, loading: Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PROGRESS_INTERVAL_S", 0.2)
    monkeypatch.setattr(supervisor, "READY_WITHIN_S", 0.0)  # all the time it has is what loading may take

    async def start(played: Supervisor) -> None:
        serving = asyncio.ensure_future(played.serve(part, 0))
        while "some/model on cpu, for" not in played_so_far(played):
            await asyncio.sleep(0.01)
            assert not serving.done()
        loading.done.set()
        await serving

    def played_so_far(played: Supervisor) -> str:
        text: str = played._console.file.getvalue()  # type: ignore[attr-defined]
        return text

    _, said = play(tmp_path, start)
    assert said.count("starting  worker-0") >= 2
    assert "ready     worker-0" in said
    assert "all is there" in said


def test_a_part_that_is_never_ready_is_given_up_with_what_it_said(
    part: ServicePart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "READY_WITHIN_S", 2.0)
    impatient = ServicePart(part.name, part.module, part.host, part.port, part.env)
    code, said = play(tmp_path, lambda played: played.serve(impatient, 0))
    assert code == EXIT_FAILED
    assert "worker-0 was not ready within 2 s" in said
    assert "it reads its weights" in said
    assert "Nothing is left running" in said
