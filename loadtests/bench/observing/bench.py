"""What observation costs a router: metrics, log, journal, traces, and Prometheus in its moods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from loadtests.bench.observing.measure import observed, page_written, scraped
from loadtests.report.figure import Figure, summary
from loadtests.report.page import figures_table
from loadtests.report.progress import Say
from loadtests.report.result import Result

METHOD = """\
**Observed.** Routers that differ in what is taken out of them, side by side before one stub that answers at once: chat
completions of sixteen tenants, {requests:,} a round over 32 connections, {rounds} rounds, each router once in every
round and in another order. `nothing` has no metrics, no journal and no line in the log for a request; `everything` is
the router as it is shipped, its log written to a file. Traced means exported to a collector that takes everything.

The cost of a request is the processor time that the kernel gave the router's process, threads included. A router has
one core, so its throughput is the reciprocal of that cost; the figure is the unobserved router's cost over the
observed one's. Each cost is the mean of the cheapest quarter of the rounds, since whoever else is busy on a machine
only makes a round dearer. What a traced router exports after a round is in its cost, too. Requests a second by the
clock are for the record.

**Prometheus.** The router as it is shipped under the same load, while somebody reads its metrics in that way. Latency
is measured afterwards in the same mood: Poisson arrivals, 200 a second, {seconds:g} s each, from the intended time.
"Gone" is nobody at all. The eight that read a byte a second are cut off after ten seconds, and come back.

**The page** is the router's part of it for sixteen tenants and `other` with six outcomes each, written in this process.
"""


class Options(msgspec.Struct, frozen=True):
    """Of this bench."""

    rounds: Annotated[int, msgspec.Meta(ge=1, le=1000, description="how often each router is loaded")] = 40
    requests: Annotated[int, msgspec.Meta(ge=100, description="requests of a round")] = 1600
    seconds: Annotated[float, msgspec.Meta(ge=0.5, le=60, description="how long latency is measured")] = 4.0


QUICK = {"rounds": 6, "seconds": 1.0}


async def measure(options: Options, say: Say) -> Result:
    """Of each way to be observed, and of each mood."""
    figures = page_written()
    figures += await observed(options.rounds, options.requests, say)
    figures += await scraped(max(2, options.rounds // 8), options.requests, options.seconds, say)
    return result(figures, options)


def result(figures: Sequence[Figure], options: Options) -> Result:
    """As a page."""
    method = METHOD.format(requests=options.requests, rounds=options.rounds, seconds=options.seconds)
    blocks = [summary(figures), figures_table(figures), "## How it is measured\n\n" + method]
    return Result("What observation costs", {"observing": figures}, blocks)
