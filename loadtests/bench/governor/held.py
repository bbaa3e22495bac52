"""The governor's memory under hostile peers: ten thousand silent connections, and payloads that are never completed."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Iterator
from typing import Any

from loadtests.bench.governor.subject import Subject, governor
from loadtests.bench.governor.wire import ping, receipt, upload
from loadtests.cluster.usage import peak_mb, rss_mb
from loadtests.report.figure import Figure, at_most

SPARE_DESCRIPTORS = 200
A_SOURCE_ADDRESS = 1_000  # connections from one address, which may hold only a share of them
MAX_IDLE_MB = 60
JOBS, JOB_BYTES, CHUNK_BYTES = 64, 4_000_000, 190_000
CONNECTION_BYTES = 67_108_864
OVERHEAD_MB = 16


async def measure(connections: int) -> tuple[list[Figure], list[str]]:
    figures, notes = [], []
    allowed = _raise_descriptor_limit()
    if allowed < connections + SPARE_DESCRIPTORS:
        notes.append(f"{connections:,} connections need more descriptors than the {allowed:,} that are allowed here.")
    else:
        figures += await _idle(connections)
    return [*figures, *await _never_finished()], notes


def _raise_descriptor_limit() -> int:
    """Raises the limit to the maximum, for this process and its children. Returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 1_000_000 if hard == resource.RLIM_INFINITY else hard


async def _idle(count: int) -> list[Figure]:
    limit = str(count + 64)
    async with governor(MAX_CONNECTIONS=limit, GOVERNOR_IDLE_S="600") as subject:
        await _warm(subject)
        before_mb = rss_mb(subject.pid)
        socks: list[socket.socket] = []
        try:
            await asyncio.to_thread(lambda: socks.extend(_connected(subject.port, count)))
            held = 0.0
            async with asyncio.timeout(60):  # the last of them may still have to be accepted
                while held < count:
                    (held,) = await subject.metric("weir_governor_connections")
            more_mb = rss_mb(subject.pid) - before_mb
            answered = await asyncio.to_thread(lambda: sum(_asked(sock) for sock in socks[:: count // 100]))
        finally:
            for sock in socks:
                sock.close()
    note = f"{held:,.0f} held, {more_mb * 1024 / count:.1f} kB each; {answered} of 100 pings afterwards were answered"
    if answered < 100:
        raise RuntimeError(f"some pings were not answered: {note}")
    return [at_most(f"memory of {count:,} silent connections", more_mb, MAX_IDLE_MB, "MB", note)]


def _connected(port: int, count: int) -> Iterator[socket.socket]:
    for number in range(count):
        source = f"127.0.0.{2 + number // A_SOURCE_ADDRESS}"
        yield socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def _asked(sock: socket.socket) -> bool:
    sock.sendall(ping())
    return b'"status":"ok"' in sock.recv(4096)


async def _warm(subject: Subject) -> None:
    """A scrape and a ping, so that one-time allocations are not counted."""
    await subject.metric()
    reader, writer = await asyncio.open_connection("127.0.0.1", subject.port)
    await _ask(reader, writer, ping())
    writer.close()


async def _never_finished() -> list[Figure]:
    """One connection declares as many jobs as it may, and sends each without its last chunk."""
    async with governor(GOVERNOR_CONNECTION_BYTES=str(CONNECTION_BYTES)) as subject:
        await _warm(subject)
        before_mb = rss_mb(subject.pid)
        reader, writer = await asyncio.open_connection("127.0.0.1", subject.port)
        accepted, yielded = await _begin(reader, writer)
        (held,) = await subject.metric("weir_governor_held_bytes")
        more_mb = peak_mb(subject.pid) - before_mb
        writer.close()
    note = f"{accepted} accepted and sent, {yielded} refused at the manifest; {held / 2**20:.0f} MB accounted for"
    limit_mb = CONNECTION_BYTES / 2**20 + OVERHEAD_MB
    name = f"peak memory of one connection with {JOBS} jobs of {JOB_BYTES // 1_000_000} MB"
    return [at_most(name, more_mb, limit_mb, "MB", note)]


async def _begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, int]:
    """(jobs accepted, jobs refused with a time to retry)."""
    payload = b"x" * JOB_BYTES
    accepted = yielded = 0
    for number in range(JOBS):
        manifest, *chunks = upload(payload, job=f"J_{number}", chunk_bytes=CHUNK_BYTES)
        reply = await _ask(reader, writer, manifest)
        if reply["status"] != "ok":
            yielded += reply["status"] == "yield"
            continue
        accepted += 1
        for chunk in chunks[:-1]:
            reply = await _ask(reader, writer, chunk)
        if receipt(reply, "cdr.bytes_in") < JOB_BYTES - CHUNK_BYTES:
            raise RuntimeError(f"a chunk was not kept: {reply}")
    return accepted, yielded


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes) -> dict[str, Any]:
    writer.write(line)
    reply: dict[str, Any] = json.loads(await reader.readline())
    return reply
