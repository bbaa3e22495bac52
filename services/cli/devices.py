"""The device of each worker. The lab does not import torch, which takes seconds: a child process lists the devices.

Worker i of n computes on `cuda:(i mod G)` with G devices, or on the i-th of a list. Two workers on one device share its
memory without knowing of each other.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.config import LabSettings
from services.cli.errors import LabError

NEEDED = ("torch", "transformers")
ONE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")
ANSWER_WITHIN_S = 120.0  # the first import of torch on a slow disk
QUESTION = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([[each.name, each.total_memory] for each in found]))
"""


@dataclass(frozen=True, slots=True)
class Device:
    """A CUDA device that torch can use here."""

    name: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({self.memory_bytes / 2**30:.0f} GiB)"


def missing() -> list[str]:
    return [name for name in NEEDED if installed(name) is None]


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def refuse(settings: LabSettings) -> None:
    """Raises LabError for a fault that would stop every worker, before anything is started."""
    if not settings.loads_a_model:
        return
    if absent := missing():
        raise LabError(f"ENGINE={settings.engine} needs {' and '.join(absent)}: `make torch` installs them.")
    names(settings.device)


def ask() -> list[Device]:
    """The CUDA devices that torch sees, possibly none. Raises LabError if torch cannot be asked."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", QUESTION], capture_output=True, text=True, check=False, timeout=ANSWER_WITHIN_S
        )
        return [Device(name, memory) for name, memory in json.loads(done.stdout)]
    except subprocess.TimeoutExpired:
        raise LabError(f"torch did not list its devices within {ANSWER_WITHIN_S:.0f} s.") from None
    except (ValueError, TypeError):
        why = tuple(done.stderr.splitlines()[-4:])
        raise LabError("torch cannot list its devices; `make torch` installs it.", notes=why) from None


async def placed(settings: LabSettings) -> list[str]:
    """The device of each worker of this machine; empty where no model is loaded."""
    if not settings.loads_a_model:
        return []
    named, count = names(settings.device), len(settings.worker_ports)
    found = await asyncio.to_thread(ask) if count > 1 and any_will_do(named) else []
    return place(named, count, len(found))


def names(device: str) -> list[str]:
    """The devices in DEVICE. Raises LabError."""
    named = [name.strip() for name in device.split(",")]
    for name in named:
        if not ONE.fullmatch(name):
            raise LabError(
                f"DEVICE={device}: {name!r} is none of auto, cpu, cuda, cuda:0; separate several with commas."
            )
    return named


def any_will_do(named: Sequence[str]) -> bool:
    """Whether any CUDA device may be used."""
    return list(named) in (["auto"], ["cuda"])


def place(named: Sequence[str], count: int, cuda_devices: int = 0) -> list[str]:
    """A device for each of `count` workers. Without CUDA devices the name stays, and the worker reports the fault."""
    if cuda_devices and any_will_do(named):
        named = [f"cuda:{index}" for index in range(cuda_devices)]
    return [named[index % len(named)] for index in range(count)]
