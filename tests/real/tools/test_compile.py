"""`weir compile` on this machine: the compiled modules do what the sources do, byte for byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services import compiled as choice

ROOT = Path(__file__).parents[3]
SAYS_WHICH = "from services import compiled; import services.core.drr as drr; print(compiled.in_use(), drr.__file__)"
ASKS_A_STORE = """
import asyncio, msgspec
from services.core.leases.exchange import ClassLevel, UsageReport, UsageRow
from services.router.leases.store import ValkeyExchange

class Client:
    def register_script(self, script):
        async def run(keys, args):
            run.said = msgspec.msgpack.decode(args[0])
            totals = [["a", "default", 5.0, 0.5, 1, 2.0, 7.0]]
            return msgspec.msgpack.encode(
                ["run", [1, 2], True, 3, totals, [["default", 1.0, 2.0]], [["default", 1.0]], [["default", 7.0]]]
            )
        self.run = run
        return run

client = Client()
levels, rows = (ClassLevel("default", 1.0, True),), (UsageRow("a", "default", 1.0, served=5.0),)
report = UsageReport("r0", (1, 2), "", levels, rows)
print(asyncio.run(ValkeyExchange(client, "pool").call(report)), client.run.said)
"""
"""What a router sends to a store, and what it reads of its answer."""
WORLDS = (3, 7)
"""Seeds: in the first a worker sends interim answers for ever, and much else that is wrong."""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def ran(*arguments: str, folder: Path, code: str) -> str:
    """What a Python says in this folder; an error of it fails the test with its words."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "WEIR_CODE": code}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code whose hot path has been compiled."""
    folder = tmp_path_factory.mktemp("compiled") / "weir"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "native", "out", "build"))
    ran("-m", "services.cli", "compile", folder=folder, code="python")
    return folder


def test_the_compiled_modules_are_used_and_the_sources_where_they_are_asked_for(compiled: Path) -> None:
    assert ran("-c", SAYS_WHICH, folder=compiled, code="compiled").startswith("True ")
    assert ran("-c", SAYS_WHICH, folder=compiled, code="python").startswith("False ")


def test_the_compiled_modules_need_nothing_of_mypyc(compiled: Path) -> None:
    """Images have the compiled modules and not mypyc's packages."""
    names = [choice.module_name(source) for source in choice.sources()]
    without = f"import sys; sys.modules['mypy_extensions'] = None; import {', '.join(names)}"
    ran("-c", without, folder=compiled, code="compiled")


@pytest.mark.parametrize("oracle", ["decisions", "wire", "views", "metrics"])
def test_the_compiled_modules_make_what_is_pinned(compiled: Path, oracle: str) -> None:
    assert f"{oracle}: as pinned" in ran("-m", "tests.oracles", "--only", oracle, folder=compiled, code="compiled")


def test_what_a_store_answers_is_read_by_the_compiled_modules(compiled: Path) -> None:
    """The exchange of several routers: no oracle and no world reads a store's bytes."""
    of_sources, of_compiled = (ran("-c", ASKS_A_STORE, folder=compiled, code=code) for code in ("python", "compiled"))
    assert of_sources == of_compiled
    assert "UsageTotals(tenant='a', class_name='default', served=5.0" in of_compiled


@pytest.mark.parametrize("seed", WORLDS)
def test_a_world_is_the_same_event_by_event(compiled: Path, seed: int) -> None:
    played = {
        code: ran("-m", "loadtests.world", "--seed", str(seed), "--size", "600", "--trace", folder=compiled, code=code)
        for code in ("python", "compiled")
    }
    of_sources = played["python"].splitlines()
    of_compiled = played["compiled"].replace('"hot_path":"compiled"', '"hot_path":"python"').splitlines()
    assert of_compiled[:-1] == of_sources[:-1], "all but the digest, which holds the log lines as they were"
