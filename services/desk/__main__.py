"""`python -m services.desk`: run the desk with settings from the environment."""

from __future__ import annotations

from services.desk.app import build
from services.desk.config import DeskSettings
from services.runtime.serve import run
from services.runtime.settings import load


def main() -> int:
    settings = load(DeskSettings)
    return run(lambda: build(settings))


if __name__ == "__main__":
    raise SystemExit(main())
