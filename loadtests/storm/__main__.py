"""`python -m loadtests.storm`: the storm bench, with settings from the environment."""

from __future__ import annotations

from loadtests.storm.app import build
from loadtests.storm.config import StormSettings
from services.runtime.serve import run
from services.runtime.settings import load


def main() -> int:
    settings = load(StormSettings)
    return run(lambda: build(settings))


if __name__ == "__main__":
    raise SystemExit(main())
