"""`make load-report`: every Locust scenario against a running router, and docs/results/locust.md.

Exit status: 0; 1 if a request failed; 2 if a scenario could not be played.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from loadtests.paths import RESULTS, ROOT
from loadtests.report.console import say
from loadtests.report.machine import together
from loadtests.report.progress import progress
from loadtests.report.record import Record
from loadtests.runs.judged import NOT_HELD, NOT_MADE, has_held, publish, resumed
from loadtests.runs.matrix.kept import code
from loadtests.runs.people.page import result
from loadtests.runs.people.playing import NotPlayed, Played, Wanted, play
from loadtests.scenarios.people import load, names
from loadtests.target import BEYOND, refusal
from services.cli.config import METRICS_OFFSET

NAME = "locust"
KEPT = ROOT / "out" / "people"
SERIES = "series.jsonl"
HOST = "http://127.0.0.1:8000"
BESIDE_S = 8.0
"""Time of a scenario beyond its own length: start, last answers."""


def main() -> int:
    given = _arguments()
    wanted = Wanted(given.host, given.metrics, given.prometheus, given.share, given.keys, given.beyond)
    known = names()
    chosen = [name for name in known if not given.only or name in given.only]
    series = (given.out or KEPT) / SERIES
    if given.fresh:
        series.unlink(missing_ok=True)
    head = {"code": code(), "host": given.host, "share": given.share, "prometheus": given.prometheus}
    record = resumed(series, head, say)
    found = {each.scenario: each for each in (msgspec.convert(row, Played) for row in record.rows)}
    missing = [name for name in chosen if name not in found]
    if done := len(chosen) - len(missing):
        say(f"{done} of {len(chosen)} are kept from an earlier run.")
    try:
        found |= _played(missing, wanted, record)
    except NotPlayed as error:
        say(str(error))
        return NOT_MADE
    played = [found[name] for name in chosen]
    whole = chosen == known and given.share == 1 and given.host == HOST
    outcome, folder = result(played), given.out or (RESULTS if whole else None)
    publish(outcome, NAME, command=_command(), machine=together(each.machine for each in played), folder=folder)
    return 0 if has_held(outcome) else NOT_HELD


def _played(missing: list[str], wanted: Wanted, record: Record) -> dict[str, Played]:
    lengths = {name: load(name).shortened(wanted.share).seconds for name in missing}
    found = {}
    with progress("people", sum(lengths.values()) + len(missing) * BESIDE_S) as report:
        for number, (name, seconds) in enumerate(lengths.items(), start=1):
            report(f"{name}, {number} of {len(missing)}: {seconds:g} s")
            played = found[name] = play(name, seconds, wanted, report)
            record.add(msgspec.to_builtins(played))
            ends = ", ".join(f"{getattr(played, kind):,} {kind}" for kind in ("served", "refused", "failed"))
            report(f"{name}: {played.requests:,} requests, {ends}")
    return found


def _command() -> str:
    arguments = [each for each in sys.argv[1:] if each not in ("--host", HOST)]
    return f'make load-report ARGS="{shlex.join(arguments)}"' if arguments else "make load-report"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.people", description="Every scenario with people.")
    parser.add_argument("--host", default=HOST, help=f"the router (default {HOST})")
    parser.add_argument("--metrics", default="", help="its /metrics; default: a thousand ports above the host's")
    parser.add_argument("--prometheus", default="", help="ask this Prometheus instead of the router's own metrics")
    parser.add_argument(
        "--only", action="append", metavar="SCENARIO", choices=names(), help="one scenario; may be repeated"
    )
    parser.add_argument("--share", type=float, default=1.0, help="scale every stage's time, from 0.01 to 1")
    parser.add_argument("--fresh", action="store_true", help="play kept scenarios again")
    parser.add_argument("--out", type=Path, help="write page, picture and kept results into this folder")
    parser.add_argument("--keys", default="", help="a file with a line `tenant: key` for each tenant")
    parser.add_argument(BEYOND, dest="beyond", action="store_true", help="load another machine, if --host names one")
    given = parser.parse_args()
    if not 0.01 <= given.share <= 1:
        parser.error("--share: 0.01 to 1 were expected")
    if why := refusal(given.host, beyond=given.beyond):
        parser.error(why)
    given.metrics = given.metrics or _metrics_of(given.host)
    return given


def _metrics_of(host: str) -> str:
    parts = urlsplit(host)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port + METRICS_OFFSET}/metrics"


if __name__ == "__main__":
    raise SystemExit(main())
