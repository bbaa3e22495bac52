"""The limits of this process, from made-up trees of `proc` and `sys`."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.runtime import machine
from services.runtime.machine import Machine, this_machine

MEMINFO = {"proc/meminfo": "MemTotal:       1024 kB\nMemFree:  1 kB\n"}
UNIT = {"proc/self/cgroup": "0::/system.slice/weir.service\n"}
OLD = {"proc/self/cgroup": "4:memory:/a\n1:cpu,cpuacct:/a\n0::/\n"}


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)))


def limits(root: Path, *trees: Mapping[str, str]) -> Machine:
    for name, text in {name: text for tree in trees for name, text in tree.items()}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return this_machine(root)


def test_where_nothing_can_be_read_the_processors_and_descriptors_are_known(tmp_path: Path) -> None:
    found = limits(tmp_path)
    assert (found.cores, found.memory_bytes, found.backlog) == (8, None, None)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert found.open_files == (None if hard == resource.RLIM_INFINITY else hard)


def test_no_limit_of_descriptors_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    assert limits(tmp_path).open_files is None


def test_the_backlog_and_the_installed_memory_are_read(tmp_path: Path) -> None:
    found = limits(tmp_path, MEMINFO, {"proc/sys/net/core/somaxconn": "128\n"})
    assert (found.backlog, found.memory_bytes) == (128, 1024 * 1024)


def test_the_lowest_limit_of_a_group_and_its_parents_counts(tmp_path: Path) -> None:
    cgroup = "sys/fs/cgroup"
    tree = {
        f"{cgroup}/system.slice/weir.service/memory.max": "max\n",
        f"{cgroup}/system.slice/weir.service/cpu.max": "max 100000\n",
        f"{cgroup}/system.slice/memory.max": "2048\n",
        f"{cgroup}/system.slice/cpu.max": "50000 100000\n",
    }
    found = limits(tmp_path, MEMINFO, UNIT, tree)
    assert (found.memory_bytes, found.cores) == (2048, 0.5)


def test_groups_without_limits_leave_the_machine(tmp_path: Path) -> None:
    tree = {"sys/fs/cgroup/system.slice/weir.service/memory.max": "max", "sys/fs/cgroup/cpu.max": "max 100000"}
    found = limits(tmp_path, MEMINFO, UNIT, tree)
    assert (found.memory_bytes, found.cores) == (1024 * 1024, 8)


def test_the_first_version_of_groups_is_read_too(tmp_path: Path) -> None:
    tree = {
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "150000",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    found = limits(tmp_path, MEMINFO, OLD, tree)
    assert (found.memory_bytes, found.cores) == (4096, 1.5)
