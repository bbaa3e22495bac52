"""`python -m services.router.production`: what `operating/production.py` finds, for `weir doctor --production`.

It reads settings and files as the router would, under the limits of this process, and opens nothing, but for one of
several routers, whose store and workers it asks (`several.py`). Exit status 0.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import msgspec
from pydantic import ValidationError

from services.contracts.finding import ProductionFinding
from services.router.app import upstream_connections
from services.router.config import RouterSettings
from services.router.operating.production import Deployment, example_keys, findings, listed_slots
from services.runtime.machine import Machine, this_machine
from services.runtime.serve import open_files_needed
from services.runtime.settings import describe


def examine(read: Callable[..., RouterSettings], machine: Machine) -> list[ProductionFinding]:
    """The findings; settings that cannot be used are the only one, since the router does not start with them."""
    try:
        settings = read()
    except ValidationError as faults:
        why, remedy = "the router does not start with them", "correct them, then ask again"
        return [ProductionFinding("settings", "fail", describe(faults).strip(), why, remedy)]
    deployment = Deployment(
        settings,
        listed_slots(settings.worker_specs()),
        example_keys=example_keys(settings),
        open_files=open_files_needed(settings, upstream_connections(settings)),
        machine=machine,
    )
    return findings(deployment) + _several(settings)


def _several(settings: RouterSettings) -> list[ProductionFinding]:
    if not settings.several_routers:
        return []
    from services.router.several import findings_of  # a client library that a lone router does not load

    return asyncio.run(findings_of(settings))


def main() -> int:
    sys.stdout.buffer.write(msgspec.json.encode(examine(RouterSettings, this_machine())) + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
