"""`python -m services.worker`: run one inference worker with settings from the environment."""

from __future__ import annotations

from services.runtime.serve import run
from services.runtime.settings import load
from services.worker.app import build
from services.worker.config import WorkerSettings


def main() -> int:
    settings = load(WorkerSettings)
    return run(lambda: build(settings))


if __name__ == "__main__":
    raise SystemExit(main())
