"""What the router's own programs find: services meet on the wire, so the command line knows none of their checks
(decision 079).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from services.cli.checks import Finding, FindingLevel
from services.cli.config import LabSettings
from services.cli.errors import LabError
from services.cli.internal import token_of
from services.contracts.finding import ProductionFinding

PRODUCTION = (sys.executable, "-m", "services.router.production")
SEVERAL = (sys.executable, "-m", "services.router.several")
WITHIN_S = 60.0
SHOWN_LINES = 5

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[bytes]]


def production_findings(run: Run | None = None) -> list[Finding]:
    """What is dangerous before a fleet. Raises LabError."""
    return _findings(PRODUCTION, run or _run)


def several_routers(settings: LabSettings, run: Run | None = None) -> list[Finding]:
    """What one of several routers needs; nothing without EXCHANGE_URL."""
    if not settings.exchange_url:
        return []
    try:
        return _findings(SEVERAL, run or partial(_run, env={**os.environ, **_stack(settings)}))
    except LabError as error:
        return [Finding("several routers", FindingLevel.FAIL, error.message, "\n".join(error.notes))]


def _stack(settings: LabSettings) -> Mapping[str, str]:
    """What `weir up` tells its router beside the environment."""
    workers = {"WORKERS": ",".join(settings.worker_urls)} if settings.own_workers else {}
    token = token_of(settings)
    return {**workers, **({"INTERNAL_TOKEN": token} if token else {})}


def _run(command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, check=False, timeout=WITHIN_S, env=env)


def _findings(command: Sequence[str], run: Run) -> list[Finding]:
    """What the program prints. Raises LabError if it cannot be asked."""
    try:
        done = run(command)
        return [_finding(found) for found in msgspec.json.decode(done.stdout, type=list[ProductionFinding])]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"The router could not be asked: {error}.") from error
    except msgspec.MsgspecError as error:
        notes = tuple(done.stderr.decode(errors="replace").splitlines()[-SHOWN_LINES:])
        raise LabError("The router could not judge its settings: is it installed here?", notes=notes) from error


def _finding(found: ProductionFinding) -> Finding:
    return Finding(found.check, FindingLevel(found.severity), found.seen, found.remedy, found.why)
