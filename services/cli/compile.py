"""`weir compile`: the core's modules as machine code, by mypyc, beside their sources.

mypyc takes a class with `slots=True` only as an ordinary Python class, whose methods are compiled. So each one is
marked in the copy that is compiled; the sources need neither mypyc nor its marks. `services.compiled` chooses at
import.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from services import compiled
from services.cli.errors import LabError
from services.compiled import CORE, FOLDER, GROUP, STAMP, digest, sources

SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(name="weir-core", packages=[], ext_modules=mypycify({files!r}, separate=[({files!r}, {group!r})], opt_level="3"))
"""
MARK = "@mypyc_attr(native_class=False)\n"
AFTER = "from __future__ import annotations\n"
IMPORTS = f"{AFTER}\nfrom typing import Any\n\nfrom services.compiled import mypyc_attr\n"
UNKNOWN_YET = ("    flow: Flow = field(", "    flow: Any = field(")
"""An ordinary class evaluates its annotations at import, when the module of `Flow` is still to come."""


def compile_core() -> Path:
    """Compile, and return the folder. Raises LabError without mypyc or a C compiler, or if either fails."""
    if find_spec("mypyc") is None:
        raise LabError("mypyc is not installed: run `make fast`, or install the extra `fast`")
    made_from = digest()
    with tempfile.TemporaryDirectory(prefix="weir-compile-") as name:
        folder = Path(name)
        files = [_marked(source, folder) for source in sources()]
        for package in ("services", "services/core"):
            (folder / package / "__init__.py").touch()
        shutil.copy(Path(compiled.__file__), folder / "services")  # the marks come from it
        (folder / "setup.py").write_text(SETUP.format(files=files, group=GROUP), encoding="utf-8")
        command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "made", "--parallel", "2"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = "\n".join((ran.stdout + ran.stderr).splitlines()[-20:])
            raise LabError(f"the core was not compiled:\n{last}")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        for made in (folder / "made").rglob("*.so"):
            shutil.move(made, FOLDER / made.name)
    STAMP.write_text(made_from + "\n", encoding="ascii")
    return FOLDER


def _marked(source: Path, folder: Path) -> str:
    """Copy a module with mypyc's marks; returns the copy's path within the folder."""
    text = source.read_text(encoding="utf-8")
    marked = "".join(MARK + line if _is_ordinary(line) else line for line in text.splitlines(keepends=True))
    if marked != text:
        marked = marked.replace(AFTER, IMPORTS, 1).replace(*UNKNOWN_YET)
    copy = folder / "services" / source.relative_to(CORE.parent)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(marked, encoding="utf-8")
    return str(copy.relative_to(folder))


def _is_ordinary(line: str) -> bool:
    """Whether this line begins a class that mypyc takes only as an ordinary Python class."""
    return line.startswith("@dataclass(") and "slots=True" in line
