"""Chooses between the core's Python modules and the same modules compiled by mypyc (`weir compile`).

The compiled modules are used if they were made from the sources that are here, by this Python. Both decide the same
(decision 062). `WEIR_CORE=python` takes the sources in any case, `WEIR_CORE=compiled` refuses to run without the
compiled ones.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: Any) -> Callable[[type], type]:
        """A mark that mypyc reads. The compiled core runs without mypyc's packages."""
        return lambda marked: marked


CORE = Path(__file__).parent / "core"
FOLDER = CORE / "compiled"
STAMP = FOLDER / "made-from"
"""The digest of the sources; written last."""
GROUP = "weir_core"
LIBRARY = f"{GROUP}__mypyc"
"""What all compiled modules share, by mypyc's naming."""
LEFT_OUT = ("__init__.py", "batcher.py", "bucket.py")
"""The batcher's generic classes exist for the sources only, and the bucket has a subclass outside the core."""
CHOICES = ("auto", "python", "compiled")


def core_path(path: Iterable[str]) -> list[str]:
    """The search path of the package `services.core`, given its own. Raises ImportError for a choice that cannot be."""
    choice = os.environ.get("WEIR_CORE", "auto")
    if choice not in CHOICES:
        raise ImportError(f"WEIR_CORE={choice}: expected one of {', '.join(CHOICES)}")
    if choice == "python":
        return list(path)
    fault = _fault()
    if not fault:
        _load_library()
        return [str(FOLDER), *path]
    if choice == "compiled":
        raise ImportError(f"WEIR_CORE=compiled, and {fault}: run `weir compile`")
    if STAMP.exists():
        warnings.warn(f"{fault}: the Python sources are used; run `weir compile`", RuntimeWarning, stacklevel=2)
    return list(path)


def digest() -> str:
    """Of the core's sources and the Python that compiles them."""
    found = hashlib.sha256(EXTENSION_SUFFIXES[0].encode())
    for source in sources():
        found.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return found.hexdigest()


def sources() -> list[Path]:
    """The modules that are compiled, in the order of their names."""
    return sorted(source for source in CORE.glob("*.py") if source.name not in LEFT_OUT)


def in_use() -> bool:
    """Whether this process runs the compiled core."""
    return LIBRARY in sys.modules


def _fault() -> str:
    """Why the compiled modules cannot be used; empty if they can."""
    if not STAMP.exists():
        return "the core has not been compiled"
    if STAMP.read_text(encoding="ascii").strip() != digest():
        return "the core was compiled from other sources, or for another Python"
    return ""


def _load_library() -> None:
    file = FOLDER / f"{LIBRARY}{EXTENSION_SUFFIXES[0]}"
    loader = ExtensionFileLoader(LIBRARY, str(file))
    sys.modules[LIBRARY] = module = module_from_spec(ModuleSpec(LIBRARY, loader, origin=str(file)))
    loader.exec_module(module)
