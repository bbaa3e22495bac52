"""Two routers' processes and a desk's, before an OpenAI-compatible server: no request too many, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import uvloop

from loadtests.cluster.stand import service
from tests.desk.rig import Server
from tests.real.desk.stand import desk_stand, survives, within

SLOTS = 4


def test_the_slots_of_a_server_hold_while_its_desk_and_a_router_are_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk_stand(tmp_path, Server(SLOTS)) as stand:
            await survives(stand)

    uvloop.run(main())


def test_they_hold_while_a_router_is_frozen_and_goes_on_and_while_the_desk_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk_stand(tmp_path, Server(SLOTS)) as stand, stand.flood(clients=4):
            for process in (stand.routers[0], stand.desk):
                await stand.answers(20)
                os.kill(process.pid, signal.SIGSTOP)
                await asyncio.sleep(3.0)
                os.kill(process.pid, signal.SIGCONT)
            await stand.answers(20)
            assert stand.server.highest == SLOTS

    uvloop.run(main())


def test_a_desk_without_servers_does_not_start_and_says_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        desk = service("desk", "services.desk", "desk", (0, 0), {}, tmp_path).process
        desk.start()
        await within(lambda: not desk.running, "it ends")
        assert "DESK_SERVERS is empty: name the servers and their slots" in desk.last_words()

    uvloop.run(main())
