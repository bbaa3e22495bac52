"""Chooses between the Python modules of the hot path and the same modules compiled by mypyc (`weir compile`).

A compiled module is used if all of them were made from the sources that are here, by this Python. Both behave the same
(decisions 062 and 078). `WEIR_CODE=python` takes the sources in any case, `WEIR_CODE=compiled` refuses to run without
the compiled ones. An image holds the sources of its own service only; modules of the others are then not looked for.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

SERVICES = Path(__file__).parent
FOLDER = SERVICES / "native"
STAMP = FOLDER / "made-from"
"""The suffix of this Python's extension modules, then a digest and a path for each source; written last."""
LIBRARY = "weir__mypyc"
"""What all compiled modules share, by mypyc's naming of the group `weir`."""
SUFFIX = EXTENSION_SUFFIXES[0]
CHOICES = ("auto", "python", "compiled")
HOT_PATH = (
    "core/*.py", "core/leases/*.py",
    "router/request.py", "router/deadlinetimer.py",
    "router/deciding/*.py", "router/parsing/*.py", "router/serving/*.py",
    "router/workers/expectedends.py", "router/workers/fleet.py", "router/workers/health.py",
    "router/workers/leasedfleet.py", "router/workers/line.py", "router/workers/worker.py",
    "router/workers/workerlease.py",
    "router/telemetry/journal.py", "router/telemetry/metrics.py", "router/telemetry/spans.py",
    "router/tenancy/rates.py", "router/tenancy/tenants.py",
    "router/upstreams/openai.py", "router/upstreams/openaianswer.py", "router/upstreams/openaistream.py",
    "router/upstreams/weir.py",
    "runtime/arrival.py", "runtime/budget.py", "runtime/client_stream.py", "runtime/connection.py", "runtime/cut.py",
    "runtime/errors.py", "runtime/framing.py", "runtime/guard.py", "runtime/hostcheck.py", "runtime/http.py",
    "runtime/instruments.py", "runtime/keepalive.py", "runtime/leasewire.py", "runtime/log.py",
    "runtime/service.py", "runtime/shared.py",
    "runtime/strictjson.py", "runtime/upstream_connection.py", "runtime/write_coalescer.py",
)  # fmt: skip
"""What a request passes through between its socket and its worker, by path below `services`."""
LEFT_OUT = {
    "core/batcher.py": "generic classes, which exist in Python only",
    "core/leases/exchange.py": "msgspec reads the annotations of its answers, of which mypyc keeps too little",
    "router/parsing/plain.py": "wire types: msgspec reads their annotations, of which mypyc keeps too little",
    "router/serving/forwarding.py": "an asynchronous generator, which mypyc does not know",
}


def use() -> None:
    """Import the compiled modules from now on, if there are any. Raises ImportError for a choice that cannot be."""
    choice = os.environ.get("WEIR_CODE", "auto")
    if choice not in CHOICES:
        raise ImportError(f"WEIR_CODE={choice}: expected one of {', '.join(CHOICES)}")
    if choice == "python":
        return
    fault = _fault()
    if not fault:
        _load_library()
        sys.meta_path.insert(0, Finder(sources()))
    elif choice == "compiled":
        raise ImportError(f"WEIR_CODE=compiled, and {fault}: run `WEIR_CODE=python weir compile`")
    elif STAMP.exists():
        warnings.warn(f"{fault}: the Python sources are used; run `weir compile`", RuntimeWarning, stacklevel=2)


def in_use() -> bool:
    """Whether this process runs the compiled modules."""
    return LIBRARY in sys.modules


def sources() -> list[Path]:
    """The modules of the hot path that are here, in the order of their paths."""
    found = {file for pattern in HOT_PATH for file in SERVICES.glob(pattern)}
    return sorted(file for file in found if file.name != "__init__.py" and _path(file) not in LEFT_OUT)


def made_from(files: Sequence[Path]) -> str:
    """The text of the stamp for these sources and this Python."""
    return "\n".join([SUFFIX, *(f"{_digest(file)} {_path(file)}" for file in files), ""])


def module_name(source: Path) -> str:
    return ".".join(("services", *source.relative_to(SERVICES).with_suffix("").parts))


class Finder(MetaPathFinder):
    """Finds the compiled module in place of each of these sources."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.names = frozenset(module_name(file) for file in files)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        file = str(FOLDER / f"{fullname}{SUFFIX}")
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


def _path(file: Path) -> str:
    return file.relative_to(SERVICES).as_posix()


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _fault() -> str:
    """Why the compiled modules cannot be used; empty if they can."""
    if not STAMP.exists():
        return "nothing has been compiled"
    stamped = set(STAMP.read_text(encoding="utf-8").splitlines())
    if SUFFIX not in stamped:
        return "the modules were compiled for another Python"
    if not stamped.issuperset(made_from(sources()).splitlines()):
        return "the modules were compiled from other sources"
    return ""


def _load_library() -> None:
    file = FOLDER / f"{LIBRARY}{SUFFIX}"
    loader = ExtensionFileLoader(LIBRARY, str(file))
    sys.modules[LIBRARY] = module = module_from_spec(ModuleSpec(LIBRARY, loader, origin=str(file)))
    loader.exec_module(module)
