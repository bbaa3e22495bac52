"""`weir worker calibrate`: runs the worker's calibration on the first device that the settings name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from services.cli import devices
from services.cli.config import LabSettings
from services.runtime.settings import environment


def calibrate(settings: LabSettings, words: Sequence[str]) -> NoReturn:
    """Become the calibration process, with the model folder of the stack's workers. Raises LabError."""
    devices.refuse(settings)
    command = [sys.executable, "-m", "services.worker.calibrate", *words]
    os.execve(sys.executable, command, {**environment(), **own(settings)})


def own(settings: LabSettings) -> dict[str, str]:
    """The settings that `weir up` chooses for a worker that loads a model."""
    if not settings.loads_a_model:
        return {}
    return {"DEVICE": devices.names(settings.device)[0], "MODEL_CACHE_DIR": str(settings.models)}
