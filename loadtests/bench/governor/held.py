"""What a peer can make the governor hold: ten thousand silent connections, and payloads that are never finished."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

from loadtests.bench.governor.subject import Subject, governor, raise_descriptor_limit
from loadtests.bench.governor.wire import chunk, manifest, ping, receipts
from loadtests.report.figure import Figure

SPARE_DESCRIPTORS = 200
A_SOURCE_ADDRESS = 5_000  # connections; the ports of one would run out
MOST_IDLE_MB = 60
JOBS, JOB_BYTES, CHUNK_BYTES = 64, 4_000_000, 190_000
CONNECTION_BYTES = 67_108_864
OVERHEAD_MB = 16


async def measure(connections: int) -> tuple[list[Figure], list[str]]:
    """Figures, and why one is missing."""
    figures, notes = [], []
    allowed = raise_descriptor_limit()
    if allowed < connections + SPARE_DESCRIPTORS:
        notes.append(f"{connections:,} connections need more descriptors than the {allowed:,} that are allowed here.")
    else:
        figures += await _idle(connections)
    return [*figures, *await _never_finished()], notes


async def _idle(count: int) -> list[Figure]:
    most = str(count + 64)
    async with governor(MAX_CONNECTIONS=most, GOVERNOR_IDLE_S="600") as subject:
        await asyncio.to_thread(_warm, subject)
        before_mb = subject.rss_mb
        socks: list[socket.socket] = []
        try:
            await asyncio.to_thread(lambda: socks.extend(_connected(subject.port, count)))
            held = 0.0
            async with asyncio.timeout(60):  # the last of them may still have to be accepted
                while held < count:
                    held = (await asyncio.to_thread(subject.scrape))["weir_governor_connections"]
            more_mb = subject.rss_mb - before_mb
            answered = await asyncio.to_thread(lambda: sum(_asked(sock) for sock in socks[:: count // 100]))
        finally:
            for sock in socks:
                sock.close()
    note = f"{held:,.0f} held, {more_mb * 1024 / count:.1f} kB each; {answered} of 100 asked afterwards, all answered"
    if answered < 100:
        raise RuntimeError(f"not all were answered: {note}")
    return [Figure(f"memory of {count:,} silent connections", more_mb, "MB", MOST_IDLE_MB, at_least=False, note=note)]


def _connected(port: int, count: int) -> Iterator[socket.socket]:
    for number in range(count):
        source = f"127.0.0.{2 + number // A_SOURCE_ADDRESS}"
        yield socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def _asked(sock: socket.socket) -> bool:
    sock.sendall(ping())
    return b'"status":"ok"' in sock.recv(4096)


def _warm(subject: Subject) -> None:
    """What is made once is not counted: a scrape, and a line of every kind."""
    subject.scrape()
    with socket.create_connection(("127.0.0.1", subject.port), timeout=30) as sock:
        _asked(sock)


async def _never_finished() -> list[Figure]:
    """One connection declares as many jobs as it may, and sends all of each but its last chunk."""
    async with governor(GOVERNOR_CONNECTION_BYTES=str(CONNECTION_BYTES)) as subject:
        await asyncio.to_thread(_warm, subject)
        before_mb = subject.rss_mb
        accepted, yielded, _, writer = await _begin(subject.port)
        held_mb = (await asyncio.to_thread(subject.scrape))["weir_governor_held_bytes"] / 2**20
        more_mb = subject.peak_mb - before_mb
        writer.close()
    note = f"{accepted} taken and sent, {yielded} told to come back at the manifest; {held_mb:.0f} MB accounted for"
    most = CONNECTION_BYTES / 2**20 + OVERHEAD_MB
    name = f"most memory for one connection with {JOBS} jobs of {JOB_BYTES // 1_000_000} MB"
    return [Figure(name, more_mb, "MB", most, at_least=False, note=note)]


async def _begin(port: int) -> tuple[int, int, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = b"x" * JOB_BYTES
    accepted = yielded = 0
    for number in range(JOBS):
        job = f"J_{number}"
        reply = await _ask(reader, writer, manifest(payload, job=job, chunk_bytes=CHUNK_BYTES))
        if reply["status"] != "ok":
            yielded += reply["status"] == "yield"
            continue
        accepted += 1
        for index, start in enumerate(range(0, JOB_BYTES - CHUNK_BYTES, CHUNK_BYTES)):
            piece = payload[start : start + CHUNK_BYTES]
            reply = await _ask(reader, writer, chunk(piece, index, job=job))
        if receipts(reply)["cdr.bytes_in"] < JOB_BYTES - CHUNK_BYTES:
            raise RuntimeError(f"a chunk was not kept: {reply}")
    return accepted, yielded, reader, writer


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes) -> dict[str, Any]:
    writer.write(line)
    reply: dict[str, Any] = json.loads(await reader.readline())
    return reply
