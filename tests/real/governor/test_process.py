"""The governor as it is shipped: a client of the original's, few descriptors, and signals."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import signal

from loadtests.cluster.processes import freeze
from tests.governor.stand import Line
from tests.governor.talk import ping, receipt, short, upload
from tests.real.governor.process import Child, governor_process

DATA = b"hello world!"
DESCRIPTORS = 64


async def as_the_original_does(child: Child, number: int, payload: bytes, chunk_bytes: int = 8) -> int:
    """The exit status of its client, frame by frame as it writes them: its key order, its numbers, its patience."""
    line, seq, yields = await child.connect(), 0, 0
    digest = hashlib.sha256(payload).hexdigest()
    count = -(-len(payload) // chunk_bytes)
    bodies = [
        f'"payload_manifest":{{"payload_id":"P_1","content_type":"application/octet-stream","content_encoding":"identity",'
        f'"cipher":"none","total_bytes":{len(payload)},"chunk_bytes":{chunk_bytes},"chunks":{count},"sha256":"{digest}"}}'
    ]
    for index in range(count):
        data = payload[index * chunk_bytes : (index + 1) * chunk_bytes]
        bodies.append(
            f'"payload_chunk":{{"payload_id":"P_1","index":{index},"offset":{index * chunk_bytes},'
            f'"sha256":"{hashlib.sha256(data).hexdigest()}","bytes_b64":"{base64.b64encode(data).decode()}"}}'
        )
    at = 0
    while at < len(bodies):
        seq += 1
        await line.send(f'{{"v":0,"verb":"share","job":"J_f{number}","seq":{seq},"ttl_ms":0,{bodies[at]}}}\n'.encode())
        while True:
            reply = await line.hear()
            if reply is None or any(type(kept["value_u64"]) is not int for kept in reply["receipts"]):
                return 1
            if reply["status"] == "yield" or reply["verb"] in ("clarify", "confirm"):
                break
        if reply["status"] == "yield":
            yields += at > 0
            if yields > 50:
                return 1
            await asyncio.sleep(min(reply["retry_hint_ms"], 5000) / 1000 or 0.05)
        elif reply["verb"] == "confirm":
            return {"done": 0, "abort": 2}.get(reply["status"], 1)
        elif reply["status"] == "need":
            return 1
        else:
            at += 1
    return 1


def test_a_client_that_does_as_the_originals_does_succeeds_twenty_times_of_twenty() -> None:
    async def main() -> None:
        async with governor_process(GOVERNOR_STUB_MS="50") as child:
            ends = await asyncio.gather(*(as_the_original_does(child, number, DATA * 3) for number in range(20)))
            assert ends == [0] * 20
            deferred = await child.scraped()
            assert deferred["heptamini_executed_total"] == 20
            assert deferred["heptamini_yielded_total"] > 0
            names = sum(len(f"J_f{number}") for number in range(20))  # in the last frames of the connections
            assert (deferred["heptamini_backend_inflight"], deferred["weir_governor_held_bytes"]) == (0, names)

    asyncio.run(main())


async def _is_served(line: Line) -> bool:
    return (await line.ask(ping()))["status"] == "ok"


async def _connections(child: Child) -> float:
    return (await child.scraped())["weir_governor_connections"]


def test_with_sixty_four_descriptors_it_survives_more_connections_than_that_and_says_so() -> None:
    async def main() -> None:
        async with governor_process(descriptors=DESCRIPTORS, MAX_SOURCE_SHARE="1") as child:
            lines = [await child.connect() for _ in range(DESCRIPTORS + 20)]
            hearing = [asyncio.create_task(line.hear()) for line in lines]
            async with asyncio.timeout(60):  # a ping that meets a goodbye on the way resets it away
                while sum(not task.done() for task in hearing) != await _connections(child):
                    await asyncio.sleep(0.05)
            for line, task in zip(lines, hearing, strict=True):
                if not task.done():
                    await line.send(ping())
            heard = await asyncio.gather(*hearing)
            served = [line for line, reply in zip(lines, heard, strict=True) if reply and reply["status"] == "ok"]
            refused = [reply["need_code"] for reply in heard if reply and reply["status"] != "ok"]
            assert refused == ["too_many_connections"] * (len(lines) - len(served))
            assert len(served) > 20
            assert all([await _is_served(line) for line in served])
            assert await _connections(child) == len(served)
            for line in lines:
                await line.close()
            await child.until(weir_governor_connections=0)
            assert await _is_served(await child.connect())

    asyncio.run(main())


def test_it_survives_more_connections_at_one_instant_than_it_has_descriptors() -> None:
    async def main() -> None:
        async with governor_process(descriptors=DESCRIPTORS, MAX_SOURCE_SHARE="1") as child:
            freeze(child.process.pid)
            lines = [await child.connect() for _ in range(3 * DESCRIPTORS)]
            for line in lines:
                await line.send(ping())
            child.process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(60):
                ends = await asyncio.gather(*(line.reader.readline() for line in lines), return_exceptions=True)
            assert sum(b'"ok"' in end for end in ends if isinstance(end, bytes)) > 20
            for line in lines:
                await line.close()
            await child.until(weir_governor_connections=0)
            assert await _is_served(await child.connect())
            assert child.process.returncode is None

    asyncio.run(main())


async def _with_a_running_job(child: Child) -> Line:
    line = await child.connect()
    await line.send(*upload(DATA))
    await child.until(heptamini_backend_inflight=1)
    return line


def test_sigterm_lets_the_running_job_end_tells_the_idle_and_leaves_with_zero() -> None:
    async def main() -> None:
        async with governor_process(GOVERNOR_STUB_MS="2000") as child:
            idle, working = await child.connect(), await _with_a_running_job(child)
            assert receipt(await idle.ask(ping(seq=4)), "server.health") == 0
            child.process.terminate()
            deferred = await idle.hear()
            assert deferred is not None
            assert (short(deferred), await idle.hear()) == (
                ("confirm", "abort", "server_draining", "draining", 5),
                None,
            )
            heard = [await working.hear() for _ in range(4)]
            assert [reply and reply["status"] for reply in heard] == ["ok", "ok", "done", "abort"]
            assert await working.hear() is None
            assert await child.left() == 0

    asyncio.run(main())


def test_a_second_sigterm_ends_it_at_once() -> None:
    async def main() -> None:
        async with governor_process(GOVERNOR_STUB_MS="3600000", DRAIN_TIMEOUT_S="600") as child:
            working = await _with_a_running_job(child)
            idle = await child.connect()
            await idle.ask(ping())
            child.process.terminate()
            assert json.dumps(await idle.hear()).count("server_draining") == 1  # the first has been heard
            child.process.terminate()
            assert await child.left() == 1
            assert b'"done"' not in await working.reader.read()

    asyncio.run(main())
