"""`weir compile`: the modules of the hot path as machine code, by mypyc, below `services/native`.

mypyc compiles copies of the sources, changed in a few places where it knows less than Python does (`CHANGES`); the
sources need neither mypyc nor its marks. All modules are one group, so that they call each other directly.
`services.compiled` says which modules these are, and chooses at import.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from services.cli.errors import LabError
from services.compiled import FOLDER, SERVICES, STAMP, made_from, module_name, sources

SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify({arguments!r}, group_name="weir", multi_file=True, opt_level="{level}")
setup(name="weir", packages=[], ext_modules=modules)
"""
OPTIMIZED = "2"
UNTYPED = ["--disable-error-code=import-not-found", "--disable-error-code=import-untyped"]
"""What is not installed here, or has no types, is of any type: optional extras, stubs for development."""
DATACLASS = "@dataclass("
SLOTS = "slots=True"
"""mypyc knows no slots of dataclasses. Its own classes have fixed places for their attributes in any case."""
FUTURE = "from __future__ import annotations\n"
CHANGES = (
    # The simulator's requests extend the class in Python.
    ("core/request.py", "@dataclass(eq=False)\nclass Request:",
     "@mypyc_attr(allow_interpreted_subclasses=True)\n@dataclass(eq=False)\nclass Request:"),
    ("core/request.py", "if TYPE_CHECKING:\n", "if TYPE_CHECKING:\n    from mypy_extensions import mypyc_attr\n"),
    ("core/request.py", "import TYPE_CHECKING\n", "import TYPE_CHECKING, Any\n"),
    # An attribute has the same type in a class and its base.
    ("core/request.py", "    id: str | int\n", "    id: Any\n"),
    ("router/request.py", "    id: str\n", "    id: Any\n"),
    ("router/request.py", FUTURE, f"{FUTURE}\nfrom typing import Any\n"),
    # A class asks for the types of its attributes when it is made: that of a flow is made later.
    ("core/request.py", "    flow: Flow = field(", "    flow: Any = field("),
)  # fmt: skip
"""File, text and replacement. Each text has to be there, once."""


def compile_hot_path() -> Path:
    """Compile, and return the folder. Raises LabError without mypyc or a C compiler, or if either fails."""
    if find_spec("mypyc") is None:
        raise LabError("mypyc is not installed: run `make fast`, or install the extra `fast`")
    files = sources()
    stamp = made_from(files)
    with tempfile.TemporaryDirectory(prefix="weir-compile-") as name:
        folder = Path(name)
        shutil.copytree(SERVICES, folder / "services", ignore=shutil.ignore_patterns("__pycache__", FOLDER.name))
        for source in files:
            relative = source.relative_to(SERVICES).as_posix()
            copy = folder / "services" / relative
            copy.write_text(changed(relative, copy.read_text(encoding="utf-8")), encoding="utf-8")
        names = [str(Path("services") / source.relative_to(SERVICES)) for source in files]
        (folder / "setup.py").write_text(SETUP.format(arguments=UNTYPED + names, level=OPTIMIZED), encoding="utf-8")
        command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "made"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = "\n".join((ran.stdout + ran.stderr).splitlines()[-20:])
            raise LabError(f"nothing was compiled:\n{last}")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        _keep(folder / "made", [module_name(source) for source in files])
    STAMP.write_text(stamp, encoding="utf-8")
    return FOLDER


def changed(path: str, text: str) -> str:
    """The text of the source at this path below `services`, as mypyc takes it."""
    text = "\n".join(map(_without_slots, text.split("\n")))
    for file, old, new in CHANGES:
        if file == path:
            assert text.count(old) == 1, f"services/{path} has changed: {old!r} is not there once"
            text = text.replace(old, new)
    return text


def _without_slots(line: str) -> str:
    if not line.startswith(DATACLASS):
        return line
    rest = ", ".join(each for each in line.removeprefix(DATACLASS).removesuffix(")").split(", ") if each != SLOTS)
    return f"{DATACLASS}{rest})" if rest else DATACLASS[:-1]


def _keep(made: Path, names: list[str]) -> None:
    """Move what was made into the folder, each module under its whole name."""
    for name in names:
        (file,) = made.joinpath(*name.split(".")).parent.glob(f"{name.rpartition('.')[2]}.*.so")
        shutil.move(file, FOLDER / f"{name}{''.join(file.suffixes)}")
    for library in made.glob("*.so"):
        shutil.move(library, FOLDER / library.name)
