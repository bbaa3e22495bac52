"""The figures and the page of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from loadtests.judging.answers import Verdict
from loadtests.report.figure import Figure, formatted, held
from loadtests.report.page import figures_table, table
from loadtests.report.result import Block, Result
from loadtests.runs.many import ends, idle, shares, slots
from loadtests.runs.many.asking import STREAM_SHARE
from loadtests.runs.many.deck import TIMES
from loadtests.runs.many.ends import AFTERMATH_S, NEVER, Ends
from loadtests.runs.many.record import Observed, Phase
from loadtests.runs.many.sizes import AGAIN_WITHIN_S, DEADLINE_S, LOAD, SETTLE_S, WATCHED_S, Sizes
from loadtests.runs.many.slots import AfterFault
from loadtests.runs.many.tenants import ASKERS, WEIGHTS, ingress

TITLE = "Several routers: faults between real processes"
INTRO = """\
{routers} routers, {workers} workers with the simulated engine ({slots} slots each, an answer takes {service_ms:.0f}
ms), a Valkey and the clients are real processes, each in a network namespace of its own, joined by a bridge
([how](../../loadtests/README.md#several-routers)). An open loop offers {per_s:.0f} requests a second, {load:g}
times the capacity, {stream:.0%} of them streamed, with deadlines of {deadline_s:g} s and without retries; {ingress} of
them reach the routers. Tenants, with their weights and their parts of the load: {tenants}. Every request has a nonce,
which its right answer repeats.

{faults} faults in an order of seed {seed}, one after another, in groups of {per_group}; after each group {calm_s:g} s
of calm; in the end the store is frozen for {frozen_s:g} s.
"""
OUTRO = """
*Hit* is a request that broke, or that failed with a status, while its own router, a worker that had it, or the link
between them was under a fault, or within {aftermath_s:g} s afterwards. Without such a fault it is *lost*. *Hung*
excludes faults of the request's own router, and stalls of the machine. The deadline of a request that was sent while
the cable of its router was out counts from its arrival there; by its own log no router may hold a request past its
deadline. Slots are those in the workers' own logs, from the arrival of a request to its end. They are looked at from
{again_s:g} s after the end of a fault (a lease's time and one second) for {watched_s:g} s, while more requests wait
than may be on their way. The error of a share is its distance from the tenant's max-min fair part by weight, relative
to that part, over the starts of one calm stretch, which begins {settle_s:g} s after the last fault.
"""


def result(observed: Observed, sizes: Sizes) -> Result:
    found, after = ends.ends(observed), slots.after_faults(observed)
    parts: dict[str, Sequence[Figure]] = {
        "every request": list(ends.figures(found, observed, sizes.requests)),
        "slots": list(slots.figures(observed, after)),
        "shares": list(shares.figures(observed, WEIGHTS, judged=sizes.is_whole)),
        "for the record": list(_recorded(observed, sizes)),
    }
    figures = [figure for some in parts.values() for figure in some]
    blocks: list[Block] = [f"**{verdict(found, observed, figures)}**", _intro(sizes), held(figures)]
    for name, some in parts.items():
        blocks += [f"## {name.capitalize()}", figures_table(some)]
    blocks += [_outro(), "## What was done", _faults(after), "## Shares in calm", _shares(observed)]
    if late := [f"- {how}" for how in shares.late_of(observed)]:
        blocks += ["## Requests of the light tenant that were not on time", late]
    if why := [f"- {reason}" for reason in idle.reasons(observed, after)]:
        blocks += ["## Slots that were idle", why]
    if kept := [f"- {what}" for what in found.kept]:
        blocks += ["## Breaches", kept]
    return Result(TITLE, parts, blocks)


def verdict(found: Ends, observed: Observed, figures: Sequence[Figure]) -> str:
    never = ", ".join(f"{found.counts[end]:,} {end.split(':')[0].split(',')[0]}" for end in NEVER)
    word = "Not held" if any(figure.held is False for figure in figures) else "Held"
    return f"{len(observed.entries):,} requests, {len(observed.spans)} faults: {never}, {found.hung:,} hung. {word}."


def _intro(sizes: Sizes) -> str:
    parts = ", ".join(f"{asker.name} {asker.weight:g} and {asker.part:.1%}" for asker in ASKERS)
    return INTRO.format(
        routers=sizes.routers, workers=sizes.workers, slots=sizes.slots, service_ms=sizes.service_s * 1000,
        per_s=sizes.per_s, load=LOAD, stream=STREAM_SHARE, deadline_s=DEADLINE_S, tenants=parts,
        ingress=", ".join(f"{part:.0%}" for part in ingress(sizes.routers)), faults=sizes.faults, seed=sizes.seed,
        per_group=sizes.per_group, calm_s=sizes.calm_s, frozen_s=sizes.frozen_s,
    )  # fmt: skip


def _outro() -> str:
    return OUTRO.format(aftermath_s=AFTERMATH_S, again_s=AGAIN_WITHIN_S, watched_s=WATCHED_S, settle_s=SETTLE_S)


def _recorded(observed: Observed, sizes: Sizes) -> Iterator[Figure]:
    yield Figure("offered over the capacity by the engine's own times", LOAD)
    for phase in Phase:
        stretches = observed.phases(phase)
        seconds = sum(stretch.to_s - stretch.from_s for stretch in stretches)
        entries = [entry for entry in observed.entries if any(ends.within(entry, stretch) for stretch in stretches)]
        served = sum(entry.verdict is Verdict.RIGHT for entry in entries)
        refused_ms = sorted((entry.ended_s - entry.sent_s) * 1000 for entry in entries if entry.code in ends.OVERLOADED)
        if seconds and refused_ms:
            yield Figure(f"{phase}: answers a second", served / seconds)
            yield Figure(f"{phase}: rejections, p99", refused_ms[int(0.99 * len(refused_ms))], "ms")
    starts = Counter(f"{entry.router}" for entry in observed.entries if entry.verdict is Verdict.RIGHT)
    yield from (Figure(f"answers through {router}", count) for router, count in sorted(starts.items()))


def _faults(after: Sequence[AfterFault]) -> Iterator[str]:
    """By kind of fault: how many, and the lowest use of slots after one."""
    by_kind = defaultdict[str, list[AfterFault]](list)
    for each in after:
        by_kind[each.span.fault.what].append(each)
    rows = []
    for what in TIMES:
        judged = [each.use.share for each in by_kind[what] if each.is_judged]
        rows.append((what.value, str(len(by_kind[what])), formatted(min(judged), "%") if judged else ""))
    return table(("Fault", "Times:", "Slots in use after it, the lowest:"), rows)


def _shares(observed: Observed) -> Iterator[str]:
    """By tenant: got and fair, in requests, of each calm stretch."""
    calm = [shares.shares_in(stretch, observed, WEIGHTS) for stretch in observed.phases(Phase.CALM)]
    rows = [
        (name, f"{WEIGHTS[name]:g}", *(f"{some[place].got} of {some[place].fair:.1f}" for some in calm))
        for place, name in enumerate(WEIGHTS)
    ]
    return table(("Tenant", "Weight:", *(f"calm {number}:" for number, _ in enumerate(calm, 1))), rows)
