"""Choice of the device and the number format, and the device's free memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import torch

from services.worker.engine_executor import EngineUnusable

CGROUP = Path("/sys/fs/cgroup")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(wanted: str) -> torch.device:
    """auto: the first GPU, else the CPU. Raises EngineUnusable if the device does not exist."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        wanted = "cuda:0" if gpus else "cpu"
    if wanted == "cuda":
        wanted = "cuda:0"
    there = ["cpu", *(f"cuda:{index}" for index in range(gpus))]
    if wanted not in there:
        built = "" if torch.version.cuda else "; this PyTorch is built without CUDA"
        raise EngineUnusable(f"DEVICE={wanted}: no such device here. There is {', '.join(there)}{built}.")
    device = torch.device(wanted)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for each shape, and each step has another (096)
    return device


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 on a GPU that supports it, else float16; float32 on a CPU. Raises EngineUnusable."""
    if wanted == "auto":
        wanted = _natural_dtype(device)
    if wanted not in DTYPES:
        raise EngineUnusable(f"DTYPE={wanted}: it is one of auto, {', '.join(DTYPES)}.")
    if wanted == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise EngineUnusable(f"DTYPE=bfloat16: {torch.cuda.get_device_name(device)} cannot; take float16 or auto.")
    if device.type == "cpu" and wanted != "float32" and not _computes(wanted):
        raise EngineUnusable(
            f"DTYPE={wanted}: this processor announces instructions for it that it does not support (a virtual "
            "machine may hide them), and PyTorch crashes. Use float32."
        )
    return DTYPES[wanted]


def _computes(dtype: str) -> bool:
    """Try the format in another process: an unsupported instruction kills the process."""
    words = f"import torch; x = torch.ones(8, 128, dtype=torch.{dtype}); x @ x.T"
    linear = f"torch.nn.functional.linear(x, torch.ones(64, 128, dtype=torch.{dtype}))"
    return (
        subprocess.run([sys.executable, "-c", f"{words}; {linear}"], capture_output=True, check=False).returncode == 0
    )


def _natural_dtype(device: torch.device) -> str:
    if device.type == "cpu":
        return "float32"
    return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"


def reserved_bytes(device: torch.device) -> int:
    """What this process has reserved on a GPU, in bytes; 0 on a CPU."""
    return int(torch.cuda.memory_reserved(device)) if device.type == "cuda" else 0


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated now, in bytes."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return min(psutil.virtual_memory().available, _container_available())


def _container_available(folder: Path = CGROUP) -> int:
    """Bytes below the limit of this process's control group (version 2); `sys.maxsize` without a limit."""
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        return max(0, int(limit) - used) if limit != "max" else sys.maxsize
    except (OSError, ValueError):
        return sys.maxsize
