"""The proxy as a process: it says where it listens, and passes on."""

from __future__ import annotations

import asyncio
import re
import sys

from loadtests.faults.proxy.proxy import HOST
from tests.loadtests.faults.test_proxy import echoing, said_back


def test_the_command_says_where_it_listens_and_passes_on() -> None:
    async def main() -> None:
        async with asyncio.timeout(60), echoing() as echo:
            words = ["-m", "loadtests.faults.proxy", "--to", f"{HOST}:{echo.port}", "--fault", "latency 1"]
            child = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
            try:
                assert child.stdout is not None
                said = (await child.stdout.readline()).decode()
                port, control = map(int, re.findall(r":(\d+)", said))
                reader, writer = await asyncio.open_connection(HOST, port)
                assert await said_back(reader, writer)
                writer.close()
                reader, writer = await asyncio.open_connection(HOST, control)
                writer.write(b"state\n")
                assert b"latency_s=0.001" in await reader.readline()
                writer.close()
            finally:
                child.terminate()
                await child.communicate()

    asyncio.run(main())
