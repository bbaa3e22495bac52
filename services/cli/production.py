"""`weir doctor --production`: what is dangerous about the router that the settings here describe, before a fleet.

The router's own program judges its settings, worker list and tenants, under the limits of this shell or unit.
"""

from __future__ import annotations

from rich.console import Console

from services.cli.doctor import show
from services.cli.routerprograms import Run, production_findings


def production(console: Console, run: Run | None = None) -> int:
    """Print the table. Returns 1 if anything is dangerous, else 0. Raises LabError if the router cannot be asked."""
    return show(production_findings(run), console)
