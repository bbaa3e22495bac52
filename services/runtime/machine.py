"""The limits that a machine, a container or a unit sets to this process: descriptors, processors, memory, backlog.

Control groups bound a process in each of its groups, from its own up to the root (cgroups(7)); both versions are read.
What cannot be read is None: unknown, or no limit.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

UNLIMITED = "max"
KIB = 1024


class Machine(NamedTuple):
    """Hard limit of open files, processors (a share for a quota), bytes of memory, longest backlog of connections."""

    open_files: int | None = None
    cores: float | None = None
    memory_bytes: int | None = None
    backlog: int | None = None


def this_machine(root: Path = Path("/")) -> Machine:
    """The limits of this process. `root`: where `proc` and `sys` are mounted."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        open_files=None if hard == resource.RLIM_INFINITY else hard,
        cores=min([*_quotas(root), float(_processors())]),
        memory_bytes=min([*_memory_limits(root), *_installed(root)], default=None),
        backlog=_number(root / "proc/sys/net/core/somaxconn"),
    )


def _processors() -> int:
    """Those that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    for group in _groups(root, "cpu"):
        quota, _, period = (_text(group / "cpu.max") or "").partition(" ")
        if quota and quota != UNLIMITED:
            yield int(quota) / int(period)
        old, old_period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if old is not None and old_period and old > 0:  # -1 without a quota
            yield old / old_period


def _memory_limits(root: Path) -> Iterator[int]:
    for group in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (limit := _number(group / name)) is not None:
                yield limit


def _installed(root: Path) -> Iterator[int]:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            yield int(line.split()[1]) * KIB


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's groups and their parents: `/proc/self/cgroup` has `number:controllers:path`."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = mounted / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mounted))


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text and text != UNLIMITED else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return None
