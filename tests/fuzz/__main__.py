"""`make fuzz`: every target in a process of its own, one after the other, for so many seconds each.

    python -m tests.fuzz --seconds 60 --only guard --only json --seed 2

With atheris (`make fuzz` installs it) coverage of the code decides which inputs are kept and mutated further: libFuzzer
(https://llvm.org/docs/LibFuzzer.html) under Python. Without it inputs are mutated by chance. What fails is kept in
out/fuzz, and `python -m tests.fuzz.one TARGET FILE` runs it again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

OUT = Path("out/fuzz")
RUNS = re.compile(r"^(?:Done|#)\s?(\d+)\b", re.MULTILINE)


def main() -> int:
    """1 if any target failed."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=sorted(TARGETS), help="this target; may be given again")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    failed = [name for name in given.only or TARGETS if not _fuzz(name, given.seconds, given.seed)]
    print(f"{len(failed)} targets failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


def _fuzz(name: str, seconds: int, seed: int) -> bool:
    command = [sys.executable, "-m", "tests.fuzz.one", name, "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    (OUT / f"{name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    runs = max((int(found) for found in RUNS.findall(done.stdout + done.stderr)), default=0)
    print(
        f"{name:10} {runs:>10,} inputs  {'ok' if done.returncode == 0 else f'FAILED: see {OUT / name}.log'}", flush=True
    )
    return done.returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
