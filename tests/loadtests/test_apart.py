"""Load tests know of the services what any client could: what they measure must not be what they are made of."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "loadtests").rglob("*.py"))
A_WORKER = "runs/matrix/worker.py"  # no client, but the simulated worker itself with one more door
OUTSIDE = tuple(
    f"cluster/{name}.py" for name in ("books", "cpu", "meters", "processes", "readings", "settling", "stand", "usage")
)
LOCUSTS = ("users/", "faults/slow", "load/answer", "load/ledger", "load/retry")
INSTALLED = ("gevent", "locust", "msgspec")  # in Locust's image, of what its users import
IN_ONE_PROCESS = ("bench", "cluster", "simulator", "storm", "world")  # they run parts of the product themselves


def within(path: Path) -> str:
    return path.relative_to(ROOT / "loadtests").as_posix()


def imported(path: Path) -> Iterator[str]:
    """Modules, as they are called in full. `from a import b` may name a module too, so it is a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by dots"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_of_the_services_the_command_line_alone_lends_its_tools() -> None:
    """Embedded stores, free ports, traces, pictures: nothing that answers a request."""
    for path in FILES:
        if within(path) != A_WORKER and within(path).split("/")[0] not in IN_ONE_PROCESS:
            wrong = [name for name in imported(path) if name.startswith("services") and "services.cli." not in name]
            assert not wrong, f"{within(path)} imports {wrong}"


def test_the_network_in_memory_knows_no_service() -> None:
    """It stands in for asyncio and the kernel. What knows services is the node that starts one, and the world."""
    for name in ("loop", "network", "transport"):
        path = ROOT / "loadtests" / "cluster" / f"{name}.py"
        assert not [wrong for wrong in imported(path) if wrong.startswith("services")], name


def test_who_misbehaves_and_who_judges_takes_nothing_of_the_services_at_all() -> None:
    for path in FILES:
        if within(path).startswith(("faults/", "judging/", "users/", *OUTSIDE)):
            assert not [name for name in imported(path) if name.startswith("services")], within(path)


def test_what_locust_plays_needs_locust_and_what_reads_scenarios_and_answers_alone() -> None:
    """Its container is given no more of the test bed."""
    ours = [path for path in FILES if within(path).startswith(LOCUSTS) or "/" not in within(path)]
    names = (*(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ours), "loadtests.scenarios")
    assert {"loadtests.locustfile", "loadtests.users.playing"} <= {*names}
    for path in ours:
        for name in imported(path):
            there = f"{name}.".startswith(tuple(f"{each}." for each in names))
            assert there or name.split(".")[0] in {*INSTALLED, *sys.stdlib_module_names}, f"{path} needs {name}"


def test_what_the_storm_bench_needs_of_the_test_bed_is_in_its_image() -> None:
    given = ("loadtests/storm", "loadtests/load", "loadtests/scenarios", "loadtests/cluster/books.py")
    dockerfile = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert all(f" {each} " in dockerfile and f"!{each}" in ignored for each in given)
    seen, todo = set[Path](), [ROOT / "loadtests" / "storm" / "__main__.py"]
    while todo:
        path = todo.pop()
        seen.add(path)
        for name in imported(path):
            found = [ROOT.joinpath(*part.split(".")).with_suffix(".py") for part in (name, name.rpartition(".")[0])]
            todo += [file for file in found if name.startswith("loadtests.") and file in FILES and file not in seen]
    needed = {path.relative_to(ROOT).as_posix() for path in seen}
    assert {"loadtests/load/client.py", "loadtests/scenarios/model.py", "loadtests/cluster/books.py"} <= needed
    assert not {path for path in needed if not path.startswith(given)}
