"""`weir compile`: the modules of the hot path as machine code, by mypyc, below `services/native`.

mypyc compiles copies of the sources, changed in a few places (`mypycsource.py`); the sources need neither mypyc nor its
marks. All modules are one group, so that they call each other directly.
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
from services.cli.mypycsource import BASE, mypyc_source
from services.compiled import FOLDER, SERVICES, STAMP, made_from, module_name, sources

SETUP = """\
import os
from concurrent.futures import ThreadPoolExecutor

from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildExt(build_ext):
    "Compiles as many files at once as there are cores: nearly all of them belong to one extension."

    def build_extensions(self):
        one_by_one = self.compiler.compile
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:

            def at_once(sources, **named):
                made = pool.map(lambda source: one_by_one([source], **named), sources)
                return [file for files in made for file in files]

            self.compiler.compile = at_once
            super().build_extensions()


modules = mypycify({arguments!r}, group_name="weir", multi_file=True, opt_level="{level}")
for module in modules:
    module.extra_compile_args += {flags!r}
setup(name="weir", packages=[], ext_modules=modules, cmdclass={{"build_ext": BuildExt}})
"""
OPTIMIZED = "2"
FLAGS = ["-fno-semantic-interposition", "-g0"]
"""The modules call each other directly, and not through a table that another library could change. Nothing reads
debugging information of the C files, which takes a fifth of the compiler's time: tracebacks name the Python lines."""
UNTYPED = ["--disable-error-code=import-not-found", "--disable-error-code=import-untyped"]
"""What is not installed here, or has no types, is of any type: optional extras, stubs for development."""


def compile_hot_path() -> Path:
    """Compile, and return the folder. Raises LabError without mypyc or a C compiler, or if either fails."""
    if find_spec("mypyc") is None:
        raise LabError("mypyc is not installed: run `make fast`, or install the extra `fast`")
    files = sources()
    stamp, base = made_from(files), (SERVICES / BASE).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="weir-compile-") as name:
        folder = Path(name)
        shutil.copytree(SERVICES, folder / "services", ignore=shutil.ignore_patterns("__pycache__", FOLDER.name))
        for source in files:
            relative = source.relative_to(SERVICES).as_posix()
            copy = folder / "services" / relative
            copy.write_text(mypyc_source(relative, copy.read_text(encoding="utf-8"), base), encoding="utf-8")
        names = [str(Path("services") / source.relative_to(SERVICES)) for source in files]
        (folder / "setup.py").write_text(
            SETUP.format(arguments=UNTYPED + names, level=OPTIMIZED, flags=FLAGS), encoding="utf-8"
        )
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


def _keep(made: Path, names: list[str]) -> None:
    """Move what was made into the folder, each module under its whole name."""
    for name in names:
        (file,) = made.joinpath(*name.split(".")).parent.glob(f"{name.rpartition('.')[2]}.*.so")
        shutil.move(file, FOLDER / f"{name}{''.join(file.suffixes)}")
    for library in made.glob("*.so"):
        shutil.move(library, FOLDER / library.name)
