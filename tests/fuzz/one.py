"""One target in this process: `python -m tests.fuzz.one TARGET --seconds 60`; with a FILE, that one input again."""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    """Raises what the target raises."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.file is not None:
        from tests.fuzz.targets import TARGETS

        TARGETS[given.target].one(given.file.read_bytes())
        return 0
    guided = importlib.util.find_spec("atheris") is not None
    return (_guided if guided else _by_chance)(given.target, given.seconds, given.seed)


def _guided(name: str, seconds: int, seed: int) -> int:
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # an extra, and without types

    with atheris.instrument_imports(include=["services"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(target.seeds):
            (Path(corpus) / str(number)).write_bytes(data)
        options = [
            *("-max_len=4096", "-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=0", "-verbosity=1"),
            *(f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix=out/fuzz/{name}-"),
        ]
        atheris.Setup([sys.argv[0], *options, corpus], target.one)
        atheris.Fuzz()  # exits the process
    return 0


def _by_chance(name: str, seconds: int, seed: int) -> int:
    from tests.fuzz.mutating import mutants
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    ends_at = time.monotonic() + seconds
    for number, data in enumerate(mutants(target.seeds, random.Random(seed))):
        try:
            target.one(data)
        except BaseException:
            Path(f"out/fuzz/{name}-crash").write_bytes(data)
            raise
        if time.monotonic() > ends_at:
            print(f"Done {number + 1} runs")
            return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
