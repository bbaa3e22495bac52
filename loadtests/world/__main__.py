"""`python -m loadtests.world --seeds 100`: play seeds and judge them. `--seed 7 --trace`: one, told event by event."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from loadtests.cluster.loop import BEGINS_S
from loadtests.world.play import Result, play


def main() -> int:
    """The exit status: 1 where a promise was broken."""
    wanted = _arguments()
    if wanted.seed is not None:
        return _one(wanted.seed, wanted.size, trace=wanted.trace)
    return _many(range(wanted.first, wanted.first + wanted.seeds), wanted.size, wanted.seconds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.world", description="The whole system in virtual time, judged, seed by seed."
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seconds", type=float, default=0, help="begin no further seed after so many seconds")
    parser.add_argument("--size", type=int, default=1000, help="requests a seed, about")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: each event as a line, and log lines")
    return parser.parse_args()


def _one(seed: int, size: int, *, trace: bool) -> int:
    def told(now: float, who: str, what: str, detail: str) -> None:
        print(f"{now - BEGINS_S:11.6f}  {who:<10} {what:<10} {detail}")

    result = play(seed, told if trace else None, size=size)
    _tell(result)
    return 1 if result.violations else 0


def _tell(result: Result) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(result.counts.items()))
    print(f"seed {result.seed}: {result.requests} requests ({counts}), {result.faults} faults, {result.digest}")
    for violation in result.violations:
        print(f"  BROKEN {violation}")


def _many(seeds: range, size: int, seconds: float) -> int:
    began = time.perf_counter()
    broken, played, requests, with_faults, virtual_s = 0, 0, 0, 0, 0.0
    counts: Counter[str] = Counter()
    for seed in seeds:
        if seconds and time.perf_counter() - began > seconds:
            break
        result = play(seed, size=size)
        played, requests, virtual_s = played + 1, requests + result.requests, virtual_s + result.virtual_s
        with_faults += bool(result.faults)
        counts += result.counts
        if result.violations:
            broken += 1
            _tell(result)
            print(f"  again: make world SEED={seed} TRACE=1", flush=True)
        if sys.stderr.isatty() and played % 10 == 0:
            print(f"\r{played} seeds, {requests} requests", end="", file=sys.stderr)
    took_s = time.perf_counter() - began
    ends = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    print(
        f"{played} seeds ({with_faults} with faults), {requests:,} requests ({ends}), {virtual_s:,.0f} virtual seconds "
        f"in {took_s:.1f} s: {requests / took_s:,.0f} requests a second; {broken} seeds broke a promise"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
