"""What the core decides, and what the policies beside it decide, in each case of the simulator's promises: a file each.

Each play has its first decisions in clear, a digest of all of them, and the first digits of what the digest was after
every eighth decision. So a difference says after which decision two plays part, and prints what is decided there now.
What was decided there before is printed by the same command on the code as it was:

    python -m tests.oracles.decisions "equal at 10x" weir 1 --from 128 --to 160
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping

from tests.oracles.oracle import PINNED, Oracle
from tests.oracles.plays import CASES, Play, plays
from tests.oracles.recording import MARK_EVERY

CLEAR = 20
"""Decisions of the first seed that stand in the file as text."""
MARKS_A_LINE = 16
ALL = 1 << 62
HEAD = re.compile(r"^== (?P<policy>\S+), seed (?P<seed>\d+): ")


def texts() -> dict[str, str]:
    """Every case's file."""
    return {file_of(name): text_of(name) for name in CASES}


def file_of(name: str) -> str:
    """The name of a case's file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()) + ".txt"


def text_of(name: str) -> str:
    """One case, every play of it."""
    return f"# {name}\n" + "".join(f"\n{line}" for play in plays(name) for line in _told(play)) + "\n"


def _told(play: Play) -> Iterator[str]:
    recorded = play.record(CLEAR if play.seed == 1 else 0)
    counts = f"{recorded.offers} offers, {recorded.decisions} decisions, {recorded.digest}"
    yield f"== {play.policy}, seed {play.seed}: {counts}"
    yield from (f"   {line}" for line in recorded.lines)
    for at in range(0, len(recorded.marks), MARKS_A_LINE):
        yield f"   after {MARK_EVERY * (at + 1)}: {' '.join(recorded.marks[at : at + MARKS_A_LINE])}"


def departures(file: str, before: str, after: str) -> str:
    """Where the plays of this case part from what is pinned, and what is decided there now."""
    (name,) = (name for name in CASES if file_of(name) == file)
    return "\n".join(_departures(name, _marks(before), _marks(after)))


Marks = Mapping[tuple[str, int], list[str]]


def _marks(text: str) -> Marks:
    found: dict[tuple[str, int], list[str]] = {}
    marks: list[str] = []
    for line in text.splitlines():
        if head := HEAD.match(line):
            marks = found[head["policy"], int(head["seed"])] = []
        elif line.startswith("   after "):
            marks += line.partition(": ")[2].split()
    return found


def _departures(name: str, before: Marks, after: Marks) -> Iterator[str]:
    for play in plays(name):
        key = play.policy, play.seed
        if before.get(key) == after.get(key) or key not in before:
            continue
        pairs = zip(before[key], after[key], strict=False)
        same = next((place for place, (old, new) in enumerate(pairs) if old != new), len(before[key]))
        first, last = max(0, MARK_EVERY * (same - 1)), MARK_EVERY * (same + 1)
        yield f"{name}, {play.policy}, seed {play.seed}: the decisions part after decision {MARK_EVERY * same}. Now:"
        yield from (f"   {line}" for line in play.record(last).lines[first:])


ORACLE = Oracle("decisions", PINNED / "decisions", texts, departures)


def main() -> None:
    """Print some decisions of one play in clear."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracles.decisions")
    parser.add_argument("case", choices=sorted(CASES), metavar="CASE")
    parser.add_argument("policy")
    parser.add_argument("seed", type=int)
    parser.add_argument("--from", dest="first", type=int, default=0, help="after so many decisions")
    parser.add_argument("--to", dest="last", type=int, default=ALL)
    given = parser.parse_args()
    for play in plays(given.case):
        if (play.policy, play.seed) == (given.policy, given.seed):
            print("\n".join(play.record(given.last).lines[given.first :]))


if __name__ == "__main__":
    main()
