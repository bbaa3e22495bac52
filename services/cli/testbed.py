"""`weir simulate` and `weir storm`: this process becomes a command of the test bed, without importing it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn

from services.cli.config import LabSettings
from services.cli.errors import LabError
from services.cli.internal import token_of
from services.cli.lease import running_stack
from services.runtime.settings import environment

SIMULATOR = "loadtests.simulator"
STORM = "loadtests.storm.command"


def simulate(words: Sequence[str]) -> NoReturn:
    """Become the simulator's command. Raises LabError if it is not installed."""
    _become(SIMULATOR, words, {})


def storm(settings: LabSettings, words: Sequence[str]) -> NoReturn:
    """Become the storm bench's client. A `--bench` in `words` overrides the address of this stack. Raises LabError."""
    stack = running_stack(settings.folder)
    address = (stack.storm_url if stack else "") or settings.storm_url
    _become(STORM, ["--bench", address, *words], {"INTERNAL_TOKEN": token_of(settings)})


def _become(module: str, words: Sequence[str], env: dict[str, str]) -> NoReturn:
    if find_spec(module.partition(".")[0]) is None:
        raise LabError(f"{module} is not installed: it is in Weir's repository, beside `services`.")
    os.execve(sys.executable, [sys.executable, "-m", module, *words], {**environment(), **env})
