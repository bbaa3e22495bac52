"""A run as a page, and as lines."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.report.page import counts_table, head
from loadtests.runs.rolling.run import PER_S, Result
from loadtests.runs.rolling.stand import DRAIN_DELAY_S, DRAIN_TIMEOUT_S, SHAPE

TITLE = "A rolling restart"
INTRO = """\
**{verdict}**

Two routers, each with a worker of its own ({shape}), behind HAProxy with the configuration
`loadtests/runs/rolling/haproxy.cfg`, all real processes on loopback. HAProxy asks `/health/ready` every 200 ms and
sends nothing to a router that has said 503 twice. The routers are restarted in turn by SIGTERM, the next one when
HAProxy has seen both ready again; `DRAIN_DELAY_S` is {delay_s:g} and `DRAIN_TIMEOUT_S` {timeout_s:g}. All the while an
open-loop client asks for {whole:g} whole answers and {streams:g} streams a second. HAProxy tries nothing twice, not
even a connection, so that what is lost is seen.
"""
OUTRO = """
*Lost* is a request that ended without an answer: no connection, a connection that ended before the answer or within it,
an error status, or a refusal that does not say when to come back.
"""


def page(result: Result, *, command: str, machine: str) -> str:
    """The whole page."""
    intro = INTRO.format(
        verdict=verdict(result), shape=SHAPE, delay_s=DRAIN_DELAY_S,
        timeout_s=DRAIN_TIMEOUT_S, whole=PER_S["whole"], streams=PER_S["streams"],
    )  # fmt: skip
    table = counts_table(rows(result), "May be")
    return "\n".join([head(TITLE, command=command, machine=machine), intro, *table, OUTRO])


def verdict(result: Result) -> str:
    """In one line."""
    word = "Held" if result.held else "Not held"
    return f"{word}: {result.lost.total():,} of {result.sent:,} requests lost in {result.restarts} restarts."


def rows(result: Result) -> Iterator[tuple[str, int, str]]:
    """Name, how many, and how many there may be where that is bounded."""
    yield "restarts", result.restarts, ""
    yield "routers that did not leave by themselves with status 0", result.unclean, "0"
    yield "requests sent", result.sent, ""
    yield "answered, whole", result.answered, ""
    yield "streams among them", result.streamed, ""
    yield "refused by a router, with a time to come back", result.refused, ""
    yield "lost", result.lost.total(), "0"
    yield from ((f"lost: {ending}", count, "0") for ending, count in sorted(result.lost.items()))
    yield "sent over 20 ms late by the client", result.generator_late, ""


def lines(result: Result) -> Iterator[str]:
    """The same for the terminal."""
    yield verdict(result)
    for name, count, most in rows(result):
        yield f"  {name:<56}{count:>8,}{f'  (at most {most})' if most else ''}"
