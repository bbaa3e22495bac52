"""`weir doctor --production`: what is dangerous about the router that the settings here describe, before a fleet.

The router's own program judges its settings, worker list and tenants, under the limits of this shell or unit: services
meet on the wire, so the command line knows none of the checks (decision 079).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console

from services.cli.checks import Finding, FindingLevel
from services.cli.doctor import show
from services.cli.errors import LabError
from services.contracts.finding import ProductionFinding

COMMAND = (sys.executable, "-m", "services.router.production")
WITHIN_S = 60.0
SHOWN_LINES = 5

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[bytes]]


def production(console: Console, run: Run | None = None) -> int:
    """Print the table. Returns 1 if anything is dangerous, else 0. Raises LabError if the router cannot be asked."""
    return show([_finding(found) for found in _ask(run or _run)], console)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, check=False, timeout=WITHIN_S)


def _ask(run: Run) -> list[ProductionFinding]:
    try:
        done = run(COMMAND)
        return msgspec.json.decode(done.stdout, type=list[ProductionFinding])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"The router could not be asked: {error}.") from error
    except msgspec.MsgspecError as error:
        notes = tuple(done.stderr.decode(errors="replace").splitlines()[-SHOWN_LINES:])
        raise LabError("The router could not judge its settings: is it installed here?", notes=notes) from error


def _finding(found: ProductionFinding) -> Finding:
    return Finding(found.check, FindingLevel(found.severity), found.seen, found.remedy, found.why)
