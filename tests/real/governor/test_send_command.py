"""The governor's command for sending, as a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from services.governor.backends import StubBackend
from tests.governor.stand import governor


def test_the_command_sends_a_file_prints_what_came_back_and_exits_by_how_it_went(tmp_path: Path) -> None:
    file = tmp_path / "a question.json"
    file.write_bytes(b'{"prompt": "?"}')

    async def run(port: int, *words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "services.governor.client", "--addr", f"127.0.0.1:{port}", *words]
        child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = await child.communicate()
        assert child.returncode is not None
        return child.returncode, out.decode(), err.decode()

    async def main() -> None:
        async with governor(StubBackend(0.0)) as stand:
            port = stand.process.bound_port
            status, out, err = await run(port, str(file))
            assert (status, out) == (0, "")
            assert "verb=confirm job=J_a_question.json seq=4 status=done" in err
            status, out, _ = await run(port, "--ping", "--csv")
            assert (status, out.splitlines()[0][:11]) == (0, "ts_unix_ms,")
            assert ",confirm,J_ping,2,ok,,," in out
        assert (await run(port, "--ping"))[0] == 1

    asyncio.run(main())
