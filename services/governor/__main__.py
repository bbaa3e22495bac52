"""`python -m services.governor`: run the governor with settings from the environment."""

from __future__ import annotations

from services.governor.app import build
from services.governor.config import GovernorSettings
from services.runtime.serve import run
from services.runtime.settings import load


def main() -> int:
    settings = load(GovernorSettings)
    return run(lambda: build(settings))


if __name__ == "__main__":
    raise SystemExit(main())
