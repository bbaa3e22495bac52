"""`weir storm`: a run from a terminal, its figures, and its report in a file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from tests.real.storm.stand import ROOT, FakeRouter, Stand, eventually, run, standing


async def weir_storm(folder: Path, stand: Stand, *said: str) -> tuple[int, str]:
    """Status, and what it said."""
    words = [sys.executable, "-m", "services.cli", "storm", *said, "--bench", str(stand.client.base_url)]
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "DATA_DIR": "data",
        "COLUMNS": "200",
    }
    child = await asyncio.create_subprocess_exec(
        *words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    return child.returncode, out.decode()


def test_a_run_is_shown_and_saved(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter()) as stand:
            status, said = await weir_storm(
                tmp_path, stand, "burst", "--set", "seconds=10", "--set", "intensity=2", "--report", "storm.html"
            )
            assert status == 0, said
            assert "26.6 answers a second" in said
            assert "the burst" in said
            (kept,) = (await stand.state())["runs"]
            assert (kept["sliders"]["seconds"], kept["sliders"]["intensity"]) == (10, 2)
            page = (tmp_path / "storm.html").read_text()
            assert page.startswith("<!doctype html>")
            assert kept["run"] in page

    run(main)


def test_what_the_bench_refuses_is_a_sentence(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(), workers=0) as stand:
            status, said = await weir_storm(tmp_path, stand, "--list")
            assert status == 0
            assert "noisy_neighbour" in said
            assert "REDIS_URL" in said
            for words in (("nothing",), ("steady", "--set", "seconds=61"), ("redis_gone",)):
                status, said = await weir_storm(tmp_path, stand, *words)
                assert status == 1
                assert "The storm bench says" in said
                assert "Traceback" not in said
            stand.kill()
            status, said = await weir_storm(tmp_path, stand, "steady")
            assert status == 1
            assert "`weir up` starts one" in said

    run(main)


def test_ctrl_c_stops_the_storm_as_well(tmp_path: Path):
    async def main() -> None:
        async with standing(tmp_path, FakeRouter(hangs=True)) as stand:
            words = [sys.executable, "-m", "services.cli", "storm", "steady", "--bench", str(stand.client.base_url)]
            env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "DATA_DIR": "data"}
            child = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, env=env, stdout=subprocess.PIPE)

            async def begun() -> bool:
                return stand.router.under_way > 0

            await eventually(begun)
            child.send_signal(2)
            out, _ = await asyncio.wait_for(child.communicate(), 60)
            assert child.returncode == 1
            assert "stopped" in out.decode()
            assert await stand.running() is None

    run(main)
