"""A confined child process (docs/decisions/048-least-power.md): its command line, and how it gives up its rights.

    python -I -B confine.py services.retrieval.parseprocess '{"arguments": [...], ...}'

The child has two environment variables and the working directory `/`. Before it imports the module that does the work,
it gives up, in this order, what the kernel allows:

    privileges   `no_new_privs`: no program that it starts can gain any (prctl(2))
    network      a network namespace without an interface (unshare(2)); where the kernel forbids that, Landlock
                 refuses TCP and abstract Unix sockets (`tcp`), and UDP stays open
    files        Landlock (landlock(7)): read its own program and the named folders, write nothing, start no
                 program, trace no process outside; `RLIMIT_FSIZE` where there is no Landlock
    limits       setrlimit(2): processor time, address space, size of files, descriptors, processes, core dumps
    orphan       `PR_SET_PDEATHSIG`: the kernel kills it when the service dies, kill -9 included

The child receives the names of what holds. Limits (but for root, RLIMIT_NPROC) and orphan hold on every Linux. A
`preexec_fn` would not do: Python code between fork and exec can deadlock in a process with threads.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
NETWORK, TCP_ONLY, FILES, LIMITS, ORPHAN, PRIVILEGES = "network", "tcp", "files", "limits", "orphan", "privileges"
EVERYTHING = (PRIVILEGES, NETWORK, TCP_ONLY, FILES, LIMITS, ORPHAN)
SYSTEM = (  # what the C library, the loader and the embedder's libraries read
    "/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types", "/dev/null",
    "/dev/urandom", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/sys/fs/cgroup",
)  # fmt: skip

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # syscall numbers, the same on every architecture
LANDLOCK_VERSION = 1
RULE_PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # how many access rights each Landlock version knows; later ones: 16
TCP = 0b11  # bind and connect; from version 4 on
SCOPES = 0b11  # abstract Unix sockets, and signals; from version 6 on


def command(module: str, arguments: Sequence[str], *, reads: Path, limits: Mapping[str, int]) -> list[str]:
    """The command line that starts `module` confined, as a child of the calling process.

    `reads`: the folder that it may read besides its program, with the targets of links in it. `limits`: names of
    `resource` without RLIMIT_, with values in that limit's unit (CPU: seconds; AS, FSIZE: bytes). The child calls the
    module's `main(arguments, held)`.
    """
    order = {
        "arguments": list(arguments), "reads": _with_links(reads), "limits": dict(limits),
        "parent": os.getpid(),
        "path": [str(ROOT), *(os.path.abspath(entry) for entry in sys.path if entry)],
    }  # fmt: skip
    return [sys.executable, "-I", "-B", __file__, module, json.dumps(order)]


def _with_links(folder: Path) -> list[str]:
    """The folder and the targets of its links: in a hub's cache, a model's files are links."""
    files = list(folder.iterdir()) if folder.is_dir() else []
    return [str(folder.resolve()), *(str(file.resolve()) for file in files if file.is_symlink())]


def confine(*, reads: Iterable[str], limits: Mapping[str, int], parent: int) -> list[str]:
    """Give up all rights but these; return the names of what holds. Exits if the parent has already died."""
    held = [name for name, give_up in (
        (PRIVILEGES, _no_new_privileges),
        (NETWORK, _no_network),
        (FILES, lambda: _landlock(reads)),
        (LIMITS, lambda: _limit(limits)),
        (ORPHAN, lambda: _die_with(parent)),
    ) if give_up()]  # fmt: skip
    if FILES in held and _landlock_version() >= 4:
        held.append(TCP_ONLY)
    return [name for name in EVERYTHING if name in held]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _no_new_privileges() -> bool:
    return sys.platform == "linux" and bool(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


def _no_network() -> bool:
    """Enter a new network namespace. An unprivileged user needs a new user namespace for that."""
    if sys.platform != "linux":
        return False
    libc = _libc()
    return any(libc.unshare(spaces) == 0 for spaces in (CLONE_NEWUSER | CLONE_NEWNET, CLONE_NEWNET))


def _landlock_version() -> int:
    """0 where the kernel has no Landlock or does not allow it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc().syscall(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION)))


def _landlock(reads: Iterable[str]) -> bool:
    """From now on only these files can be opened, none for writing, and no program can be started."""
    version = _landlock_version()
    if version == 0:
        return False
    libc = _libc()
    rights = (1 << FILE_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("QQQ", rights, TCP, SCOPES)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = libc.syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    if rules < 0:
        return False
    try:
        for path in reads:
            _allow(libc, rules, path)
        return bool(libc.syscall(LANDLOCK_RESTRICT, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str) -> None:
    with suppress(OSError):  # a missing file needs no rule
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE
            libc.syscall(LANDLOCK_ADD, rules, RULE_PATH_BENEATH, struct.pack("=Qi", allowed, descriptor), 0)
        finally:
            os.close(descriptor)


def _limit(limits: Mapping[str, int]) -> bool:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard_limit = resource.getrlimit(kind)
        value = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
        resource.setrlimit(kind, (value, value))
    return True


def _die_with(parent: int) -> bool:
    """Runs last: a new user namespace clears the signal. If the parent died before, no signal comes, so exit."""
    held = sys.platform == "linux" and bool(_libc().prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    if os.getppid() != parent:
        os._exit(1)
    return held


def _own_files(path: Iterable[str]) -> list[str]:
    """The files of this program, but not all of ROOT, which may hold a `.env`."""
    others = [entry for entry in path if Path(entry) != ROOT and not ROOT.is_relative_to(entry)]
    return [str(ROOT / "services"), sys.prefix, sys.base_prefix, *others, *SYSTEM]


def main(module: str, order: str) -> None:
    """The child: confine itself, then work."""
    wanted = json.loads(order)
    sys.path[:] = list(dict.fromkeys([*wanted["path"], *sys.path]))
    importlib.import_module("services")  # before ROOT becomes unreadable
    reads = [*_own_files(sys.path), *wanted["reads"]]
    held = confine(reads=reads, limits=wanted["limits"], parent=wanted["parent"])
    work: Callable[[Sequence[str], Sequence[str]], None] = importlib.import_module(module).main
    work(wanted["arguments"], held)


if __name__ == "__main__":
    main(*sys.argv[1:])
