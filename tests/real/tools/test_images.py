"""What an image is given is enough to start its service: the Dockerfile's own commands, on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "services" / "Dockerfile").read_text(encoding="utf-8")
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
MODULES = {
    found[1]: found[2]
    for stage in STAGES.values()
    if (
        found := re.search(
            r'COPY --from=source /tree/(\w+) /app.*ENTRYPOINT \["python", "-m", "(\S+)"\]', stage, re.DOTALL
        )
    )
}
# An editable install would find in this checkout what the image lacks.
ALONE = "import sys\nsys.meta_path = [one for one in sys.meta_path if 'editable' not in str(one).lower()]"
OURS = "n.startswith('services.') and m.__file__"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trees as the stage `source` makes them, but for their bytecode and the compiled modules."""
    folder = tmp_path_factory.mktemp("images")
    for source in ("services", "loadtests"):
        shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__", "native"))
    (folder / "services" / "native").mkdir()  # the stage `native` fills it
    (run,) = re.findall(r"^RUN (.*?)(?=^\S|\Z)", STAGES["source"], re.MULTILINE | re.DOTALL)
    script = run.replace("\\\n", " ").replace("/tree", str(folder / "tree")).partition("&& python -m compileall")[0]
    subprocess.run(["sh", "-e", "-c", script], cwd=folder, check=True)
    return folder / "tree"


def test_every_service_has_an_image():
    assert set(MODULES) == {"router", "retrieval", "worker", "governor", "desk", "storm"}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_service_starts_from_its_own_tree_alone(name: str, tree: Path):
    code = f"{ALONE}\nimport {MODULES[name]}.__main__\nprint(*(m.__file__ for n, m in sys.modules.items() if {OURS}))"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree / name), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert files
    assert all(file.startswith(str(tree / name)) for file in files)


def test_the_router_is_given_the_page_that_it_serves(tree: Path):
    static = tree / "router" / "services" / "console" / "static"
    assert (static / "index.html").is_file()


def test_the_storm_bench_is_given_nothing_that_starts_or_stops_a_stack(tree: Path):
    assert {path.name for path in (tree / "storm" / "loadtests").iterdir()} == {
        "__init__.py", "cluster", "load", "scenarios", "storm",
    }  # fmt: skip
    readers = {path.name for path in (tree / "storm" / "loadtests" / "cluster").glob("*.py")}
    assert readers == {"__init__.py", "books.py"}
    assert {path.name for path in (tree / "storm" / "services" / "cli").iterdir()} == {"__init__.py", "errors.py"}


@pytest.mark.skipif(find_spec("locust") is None, reason="Locust is not installed (make load installs it)")
def test_locust_plays_from_its_own_tree_alone(tree: Path):
    alone = ALONE.replace("\n", "; ")
    code = f"{alone}; import loadtests.users.playing as p; print(*p.names()); p.load('burst')"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree / "locust"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "noisy_neighbour" in done.stdout.split()
