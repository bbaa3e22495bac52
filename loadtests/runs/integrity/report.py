"""The figures and the page of a run."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.cluster.making import SLOTS, Shape
from loadtests.faults.evil.staged import STAGES
from loadtests.faults.evil.tricks import ROWS
from loadtests.report.figure import Figure, formatted
from loadtests.report.page import figures_table, parts_summary, table
from loadtests.report.result import Block, Result
from loadtests.runs.integrity.checker import NEVER, Rule
from loadtests.runs.integrity.parts import KILL_EVERY_S, Kind
from loadtests.runs.integrity.play import DEADLINE_MS, TAIL_REQUESTS, WIRED_SHARE
from loadtests.runs.integrity.questions import ASK_SHARE, STREAM_SHARE
from loadtests.runs.integrity.run import Played
from loadtests.runs.integrity.schedule import HOLDS_S, TIMES, What

TITLE = "Integrity: every request ends once"
INTRO = """\
Real processes on loopback: {workers} workers with the simulated engine ({slots} slots each), retrieval, PostgreSQL,
Valkey and the router. An open-loop client sends {per_s:g} requests a second, {ask:.0%} of them `/ask`, the rest chat,
{stream:.0%} streamed, with a deadline of {deadline_ms:g} ms each and no retry. Every request carries a nonce, which its
right answer repeats to the last byte and which is also its `x-request-id`. Each request is compared over its client,
the router's log and metrics, and the workers' logs; the rules are those of [the world](../architecture/world.md). The
run has four kinds of parts, each on a stack of its own:

- *faults*: {faults} faults of every component, in a seeded order, among {requests:,} requests, with
  [a faulty wire](../../loadtests/README.md#a-wire-that-fails) before each component, and before the router for
  {wired:.0%} of the clients;
- *kills*: {kills} workers killed one at a time, one every {kill_every_s:g} s;
- *nonces*: {nonces:,} requests while workers are frozen and killed in turn, with two byzantine workers that answer half
  of their requests with one of {tricks} tricks (`loadtests/faults/evil`);
- *leavers*: {leavers:,} clients that disconnect at {stages} stages, 50 at a time.

After its last fault a part waits until the router holds nothing and misses no component. Then it sends {tail} more
requests.
"""
OUTRO = """
The ends are explained in [one end for every request](../../loadtests/README.md#one-end-for-every-request). *Hung*
excludes deliberate freezes and stalls of the machine itself: a late timer in the client, and the time in which the
router was ready to run without a processor (`/proc/PID/schedstat`). In this run the stalls were {still_s:.1f} s in
{took_s:.0f} s. *Not in the router's log* excludes answers in the second before the router was killed. *Failures before
the first token* are of the parts in which nothing else was done. Killed processes are started again after {down_s:g} s,
as a supervisor would.
"""


def result(played: Played) -> Result:
    sizes, done = played.sizes, played.done
    intro = INTRO.format(
        workers=Shape().workers, slots=SLOTS, per_s=sizes.per_s, ask=ASK_SHARE,
        stream=STREAM_SHARE, deadline_ms=DEADLINE_MS, faults=sizes.faults, requests=sizes.requests, wired=WIRED_SHARE,
        kills=sizes.kills, kill_every_s=KILL_EVERY_S, nonces=sizes.nonces, tricks=len(ROWS), leavers=sizes.leavers,
        stages=len(STAGES), tail=TAIL_REQUESTS,
    )  # fmt: skip
    outro = OUTRO.format(
        still_s=sum(each.still_s for each in done), took_s=sum(each.took_s for each in done), down_s=HOLDS_S[What.KILL]
    )
    blocks: list[Block] = [f"**{verdict(played)}**", intro, parts_summary(played.figures)]
    for name, figures in played.figures.items():
        blocks += [f"## {name.capitalize()}", figures_table(figures)]
    blocks += [outro, "## What was done", _done(played), *_stages(played)]
    if kept := [f"- {what}" for each in done for what in each.kept]:
        blocks += ["## Breaches", kept]
    faults = [Figure(name, count) for name, count in sorted(played.faults.items())]
    return Result(TITLE, {**played.figures, "what was done": faults}, blocks)


def verdict(played: Played) -> str:
    counts = played.counts
    never = ", ".join(f"{counts[end.value]:,} {end.value.split(':')[0].split(',')[0]}" for end in NEVER)
    return (
        f"{counts['asked']:,} requests, {played.faults.total():,} faults: {never}, {counts[Rule.HUNG.value]:,} hung. "
        f"{'Held.' if played.held else 'Not held.'}"
    )


def _done(played: Played) -> Iterator[str]:
    counts = [(part, *(str(played.faults[f"{part}: {what}"] or "") for what in What)) for part in TIMES]
    return table(("", *(f"{what}:" for what in What)), counts)


def _stages(played: Played) -> Iterator[Block]:
    for done in played.done:
        if done.kind == Kind.LEAVERS.value:
            p99 = {stage: done.values.get(f"p99: {stage}") for stage in STAGES}
            yield "Time until slots were free, by the stage at which their clients left:"
            yield table(
                ("Stage", "p99:"), ((stage, formatted(ms, "ms")) for stage, ms in p99.items() if ms is not None)
            )
