"""The page docs/results/observing.md."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.report.figure import Figure, summary
from loadtests.report.page import figures_table, head

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


def markdown(figures: Sequence[Figure], *, command: str, where: str, requests: int, rounds: int, seconds: float) -> str:
    """The whole page."""
    return "\n".join(
        [
            head("What observation costs", command=command, machine=where),
            summary(figures),
            "",
            *figures_table(figures),
            "",
            "## How it is measured",
            "",
            METHOD.format(requests=requests, rounds=rounds, seconds=seconds),
        ]
    )
