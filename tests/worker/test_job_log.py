"""What a worker logs of its jobs at DEBUG: load tests count the slots in use by it."""

from __future__ import annotations

import asyncio
import io
import json

from services.runtime.log import Log
from tests.worker.rig import asking, in_virtual_time, read, turning


def jobs_in(stream: io.BytesIO) -> list[tuple[str, str]]:
    lines = map(json.loads, stream.getvalue().splitlines())
    return [(line["event"], line["id"]) for line in lines if line["event"].startswith("job ")]


@in_virtual_time
async def test_each_job_is_logged_when_it_is_queued_gets_a_slot_and_ends():
    stream = io.BytesIO()
    async with turning(slots=1, log=Log("worker", "DEBUG", stream, threaded=False)) as loop:
        jobs = [await loop.submit(asking(id, 1)) for id in "ab"]
        await asyncio.gather(*map(read, jobs))
    assert jobs_in(stream) == [
        ("job queued", "a"), ("job queued", "b"), ("job started", "a"), ("job ended", "a"), ("job started", "b"),
        ("job ended", "b"),
    ]  # fmt: skip


@in_virtual_time
async def test_a_job_that_never_got_a_slot_ends_in_the_log_as_well():
    stream = io.BytesIO()
    async with turning(slots=1, log=Log("worker", "DEBUG", stream, threaded=False)) as loop:
        running, queued = [await loop.submit(asking(id, 5)) for id in "ab"]
        loop.abandon(queued)
        await read(running)
    assert ("job started", "b") not in jobs_in(stream)
    assert ("job ended", "b") in jobs_in(stream)


@in_virtual_time
async def test_above_debug_jobs_leave_no_line():
    stream = io.BytesIO()
    async with turning(log=Log("worker", "INFO", stream, threaded=False)) as loop:
        await read(await loop.submit(asking("a", 1)))
    assert jobs_in(stream) == []
