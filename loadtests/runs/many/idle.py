"""Why slots were idle after a fault: at which workers, and which routers held one of them for dead meanwhile.

A router takes a worker for dead after two missed probes or a refused connection, for 1 s the first time and twice as
long each time within a minute (docs/operations/workers.md). Slots that are idle at a worker which every router takes
for alive, on a machine that did not stall, were lent to a router that did not use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtests.runs.many.record import Observed
from loadtests.runs.many.slots import IN_USE, AfterFault
from loadtests.runs.many.steps import jobs_at_once


def reasons(observed: Observed, after: Sequence[AfterFault]) -> Iterator[str]:
    """One line for each fault after which slots were not in use again."""
    used = {worker.name: jobs_at_once(worker.jobs) for worker in observed.workers}
    for each in after:
        if not each.is_missed:
            continue
        begin, end = each.begin_s, each.end_s
        jobs = {name: steps.mean(begin, end) for name, steps in used.items()}
        low = [f"{name} {mean:.1f}" for name, mean in jobs.items() if mean < IN_USE * observed.slots]
        dead = ", ".join(_ejected(observed, each)) or "every worker was taken for alive"
        yield (
            f"{each.span.fault}: {each.use.share:.1%} in use, {begin - each.span.to_s:.2f} s after its end; jobs at "
            f"workers with {observed.slots} slots: {', '.join(low) or 'as usual'}; the machine stalled for "
            f"{observed.still(begin, end):.2f} of {end - begin:.2f} s; {dead}"
        )


def _ejected(observed: Observed, each: AfterFault) -> Iterator[str]:
    for ejection in observed.ejections:
        if ejection.from_s < each.end_s and ejection.to_s > each.begin_s:
            back_s = ejection.to_s - each.span.to_s
            yield f"{ejection.router} took {ejection.worker} for dead until {back_s:+.2f} s"
