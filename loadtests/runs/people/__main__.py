"""`make load-report`: every scenario with people against a router that runs, and docs/results/locust.md.

Exit status: 0; 1 where a request failed; 2 where a scenario could not be played.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.paths import RESULTS, ROOT
from loadtests.report.console import say
from loadtests.runs.matrix.kept import code
from loadtests.runs.people.kept import Kept, Played
from loadtests.runs.people.page import STEM, judged, page
from loadtests.runs.people.picture import draw
from loadtests.runs.people.playing import NOT_MADE, NotPlayed, Wanted, play
from loadtests.scenarios.people import load, names
from loadtests.target import BEYOND, refusal

KEPT = ROOT / "out" / "people"
SERIES = "series.json"
HOST = "http://127.0.0.1:8000"
METRICS_OFFSET = 1000
"""`make up` puts the router's metrics listener so far above its port."""
BESIDE_S = 8.0
"""What a scenario takes beyond its own length: start, the last answers."""


def main() -> int:
    """Play what is missing, and write the page where the series is whole."""
    given = _arguments()
    wanted = Wanted(given.host, given.metrics, given.prometheus, given.share, given.keys, given.beyond)
    what = f"{code()} {given.host} {given.share:g} {given.prometheus}"
    series = (given.out or KEPT) / SERIES
    kept = Kept(series, what, say, forget=given.fresh)
    known = names()
    chosen = [name for name in known if not given.only or name in given.only]
    missing = [name for name in chosen if name not in kept.book.played]
    if done := len(chosen) - len(missing):
        say(f"{done} of {len(chosen)} are kept from before ({series}).")
    try:
        for place, name in enumerate(missing):
            kept.keep(_played(name, missing[place:], wanted))
    except NotPlayed as error:
        say(str(error))
        return NOT_MADE
    played = [kept.book.played[name] for name in chosen]
    whole = chosen == known and given.share == 1 and given.host == HOST
    folder = given.out or (RESULTS if whole else None)
    if folder is None:
        say(page(played, command=_command(), drawn=False))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = draw(played, folder, STEM)
        (folder / f"{STEM}.md").write_text(page(played, command=_command(), drawn=drawn), encoding="utf-8")
        say(f"Written to {folder / STEM}.md.")
    return 0 if all(figure.held for figure in judged(played)) else 1


def _played(name: str, left: list[str], wanted: Wanted) -> Played:
    lengths = {each: load(each).shortened(wanted.share).seconds for each in left}
    after_s = sum(seconds + BESIDE_S for each, seconds in lengths.items() if each != name)
    say(f"{name}: {lengths[name]:g} s; {_left(lengths[name] + BESIDE_S + after_s)}, {len(left)} to play")
    found = play(name, lengths[name], wanted, _teller(name, lengths[name], after_s))
    ends = ", ".join(f"{getattr(found, kind):,} {kind}" for kind in ("served", "refused", "failed"))
    say(f"{name}: {found.requests:,} requests, {ends}")
    return found


def _teller(name: str, seconds: float, after_s: float) -> Callable[[float], None]:
    def tell(lasted_s: float) -> None:
        left_s = max(0.0, seconds + BESIDE_S - lasted_s) + after_s
        say(f"{name}: {min(lasted_s, seconds):.0f} of {seconds:g} s; {_left(left_s)}")

    return tell


def _left(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"


def _command() -> str:
    arguments = [each for each in sys.argv[1:] if each not in ("--host", HOST)]
    return f'make load-report ARGS="{shlex.join(arguments)}"' if arguments else "make load-report"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.people", description="Every scenario with people.")
    parser.add_argument("--host", default=HOST, help=f"the router (default {HOST})")
    parser.add_argument("--metrics", default="", help="its /metrics; default: a thousand ports above the host's")
    parser.add_argument("--prometheus", default="", help="ask this Prometheus instead of the router's own metrics")
    parser.add_argument(
        "--only", action="append", metavar="SCENARIO", choices=names(), help="one of them; again for more"
    )
    parser.add_argument("--share", type=float, default=1.0, help="a share of every stage's time, from 0.01 to 1")
    parser.add_argument("--fresh", action="store_true", help="play again what is kept")
    parser.add_argument("--out", type=Path, help="write the page and the picture into this folder, and what is kept")
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
