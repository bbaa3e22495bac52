"""Samples of processes that live, grow and end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from loadtests.runs.soak.growth import sample

LEAK = """
import sys, time
held, files = [], []
print("ready", flush=True)
for line in sys.stdin:
    held.append(bytearray(b"x" * 1024 * 1024))
    files.append(open("/dev/null"))
    print(len(held), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_memory_and_files_that_a_process_takes_and_keeps_are_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", LEAK], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = asyncio.run(sample(process.pid, 0.0))
        for number in range(1, 21):
            process.stdin.write("more\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{number}\n"
        after = asyncio.run(sample(process.pid, 1.0))
        process.kill()
    assert before is not None
    assert after is not None
    assert 18 < after.memory_mb - before.memory_mb < 30
    assert after.descriptors - before.descriptors == 20
    assert before.threads == after.threads == 1
    assert after.tasks is None


def test_a_process_that_has_ended_has_no_sample() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    end = time.monotonic() + 10
    while (seen := asyncio.run(sample(process.pid, 0.0))) is not None:
        assert time.monotonic() < end, seen
