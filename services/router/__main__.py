"""`python -m services.router`: settings from the environment."""

from __future__ import annotations

from services.router.app import build
from services.router.config import RouterSettings
from services.router.processes.child import inherit, place_here
from services.runtime.log import Log
from services.runtime.machine import this_machine
from services.runtime.serve import run
from services.runtime.settings import load


def main() -> int:
    """Run until a signal, and return the exit status."""
    settings, place = load(RouterSettings), place_here()
    if settings.router_processes > 1:
        from services.router.processes.parent import run_parent  # one process needs none of it

        return run_parent(settings)
    if place is None:
        return run(lambda: build(settings, machine=this_machine()))
    log = Log("router", settings.log_level, process=place.index)
    return run(lambda: inherit(build(settings, log=log, machine=this_machine()), place), bind=place.bind)


if __name__ == "__main__":
    raise SystemExit(main())
