"""`python -m services.router`: settings from the environment."""

from __future__ import annotations

from services.router.app import build
from services.router.config import RouterSettings
from services.runtime.machine import this_machine
from services.runtime.serve import run
from services.runtime.settings import load


def main() -> int:
    """Run until a signal, and return the exit status."""
    settings = load(RouterSettings)
    return run(lambda: build(settings, machine=this_machine()))


if __name__ == "__main__":
    raise SystemExit(main())
