"""`weir worker calibrate`: the worker's own measurement, on the first device that the settings name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from services.cli import devices
from services.cli.config import LabSettings
from services.runtime.settings import environment


def calibrate(settings: LabSettings, words: Sequence[str]) -> NoReturn:
    """Become the worker's calibration, with the model folder that the stack's workers use."""
    devices.refuse(settings)
    command = [sys.executable, "-m", "services.worker.calibrate", *words]
    os.execve(sys.executable, command, {**environment(), **own(settings)})


def own(settings: LabSettings) -> dict[str, str]:
    """What the lab decides for a worker that loads a model, as it does in `weir up`."""
    if not settings.loads_a_model:
        return {}
    return {"DEVICE": devices.names(settings.device)[0], "MODEL_CACHE_DIR": str(settings.models)}
