"""A run as a page."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.faults.evil.tricks import ROWS
from loadtests.report.page import counts_table, head
from loadtests.runs.nonces.judge import Verdict
from loadtests.runs.nonces.run import DEADLINE_MS, PER_S, Result
from loadtests.runs.nonces.stand import SLOTS, STEP_MS, WORKERS
from loadtests.runs.nonces.tally import GRACE_MS

TITLE = "Whose answer is it"
INTRO = """\
Every prompt carries a nonce that its right answer repeats, and every answer is compared to the only right one, to the
last byte, by code that shares nothing with the router (`loadtests/runs/nonces/judge.py`). Real processes on loopback:
{workers} workers with the simulated engine ({slots} slots, steps of {step_ms:g} ms), the router with its default
settings but for shorter looks and silences, and an open-loop client that asks {per_s:g} questions a second, half of
them streams, with a deadline of {deadline_ms:g} ms each. All the while one worker after another is killed and started
again, or frozen and thawed; and two evil workers take part that answer half of what they are asked with one of
{tricks} tricks (`loadtests/faults/evil`): cut, mixed, misframed, malformed, silent or endless answers. What the machine
itself stood still after a deadline is held against nobody (`loadtests/stillness.py`).
"""


def page(result: Result, *, command: str, machine: str) -> str:
    """The whole page."""
    intro = INTRO.format(
        workers=WORKERS, slots=SLOTS, step_ms=STEP_MS, per_s=PER_S,
        deadline_ms=DEADLINE_MS, tricks=len(ROWS),
    )  # fmt: skip
    table = "\n".join(counts_table(rows(result), "May be"))
    done = ", ".join(f"{name}: {count:,}" for name, count in result.troubles.items())
    late = f"{result.figures.generator_late:.2%} of the questions left the client over 20 ms late."
    return f"{head(TITLE, command=command, machine=machine)}\n{intro}\n{table}\n\nDone to them: {done}. {late}\n"


def rows(result: Result) -> Iterator[tuple[str, int, str]]:
    """Name, how many, and how many there may be where that is bounded."""
    tally = result.tally
    found = tally.verdicts
    yield "asked", tally.requests, ""
    yield "answered, whole and right", found[Verdict.RIGHT], ""
    yield "refused before a worker had them", found[Verdict.REFUSED] - tally.failed, ""
    yield "failed, and told so with a status", tally.failed, ""
    yield "streams that were cut and say so", found[Verdict.CUT], ""
    yield "ended without a word", found[Verdict.DROPPED], "0"
    yield "**somebody else's nonce**", found[Verdict.FOREIGN], "0"
    yield "**wrong, mixed or truncated, told as whole**", found[Verdict.WRONG], "0"
    yield f"over later than {GRACE_MS:g} ms after the deadline", tally.hung, "0"
    yield "never answered", tally.unanswered, "0"
    yield "places that the router still held at the end", round(result.left), "0"


def lines(result: Result) -> Iterator[str]:
    """The same for the terminal, and the first of what must never be."""
    for name, count, most in rows(result):
        yield f"  {name.strip('*'):<52}{count:>8,}{f'  (at most {most})' if most else ''}"
    yield "  " + ", ".join(f"{name}: {count:,}" for name, count in result.troubles.items())
    yield f"  questions that left the client late: {result.figures.generator_late:.2%}"
    for verdict, request, answer in result.tally.kept:
        yield f"\n{verdict.upper()}\n{request.decode(errors='replace')}\n{answer.decode(errors='replace')}"
