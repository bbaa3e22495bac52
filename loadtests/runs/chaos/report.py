"""A run as a page, and as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtests.report.page import counts_table, head, table
from loadtests.runs.chaos.checker import AFTERMATH_S, GRACE_S, NEVER, End, Entry
from loadtests.runs.chaos.deck import HOLDS_S, TIMES, Card, What
from loadtests.runs.chaos.making import SLOTS, WORKERS
from loadtests.runs.chaos.questions import ASK_SHARE, STREAM_SHARE
from loadtests.runs.chaos.run import DEADLINE_MS, WIRED_SHARE, Result

TITLE = "Chaos: every part killed, frozen and cut off, under load"
INTRO = """\
**{verdict}**

The whole stack as real processes on loopback: {workers} workers with the simulated engine ({slots} slots each),
retrieval, PostgreSQL, Valkey and the router, each with
[a wire that can fail](../../loadtests/README.md#a-wire-that-fails) before it. An open-loop client asks {per_s:g} times
a second, {ask:.0%} of it `/ask` and the rest chat, {stream:.0%} streamed, with a deadline of {deadline_ms:g} ms each
and no second try. {wired:.0%} of the clients have a failing wire before the router themselves. Meanwhile {faults}
faults are done, in a seeded random order, one every {gap:.1f} s.

Every request carries a nonce that its right answer repeats to the last byte, and is its `x-request-id` too. So each is
followed twice: by what its client got, and by what the router wrote down.
"""
OUTRO = """\
- *A visible break*: the connection ended before the answer did. It counts as one only while the router was dead or the
  client's own wire broken; a break that no such fault accounts for counts as lost.
- *Lost*: never answered, or ended without a word and without a cause. *Answered twice*: a second answer on the wire, or
  a second line in the router's log. *Foreign*: somebody else's nonce anywhere in it.
- *Hung*: ended later than {grace_ms:g} ms after its deadline. Taken off are the time in which the router or the wire
  was frozen on purpose, and what the machine itself stood still: a timer in the client that went off late, and the time
  the router was ready to run and had no processor (`/proc/PID/schedstat`). In this run that was {still_s:.1f} s in
  {took_s:.0f} s; {late:.2%} of the requests left the client over 20 ms late.
- *Not in the log*: answered, and the router has no line of it, though it was not killed within the next second.
- Killed parts are started again after {down_s:g} s, as a supervisor would.
"""


def page(result: Result, *, command: str, machine: str) -> str:
    """The whole page."""
    wanted = result.wanted
    intro = INTRO.format(
        verdict=verdict(result), workers=WORKERS, slots=SLOTS,
        per_s=wanted.per_s, ask=ASK_SHARE, stream=STREAM_SHARE, deadline_ms=DEADLINE_MS, wired=WIRED_SHARE,
        faults=wanted.faults, gap=wanted.seconds / (wanted.faults + 1),
    )  # fmt: skip
    outro = OUTRO.format(
        grace_ms=GRACE_S * 1000, still_s=result.still_s, took_s=result.took_s, late=result.client_late,
        down_s=HOLDS_S[What.KILL],
    )  # fmt: skip
    return "\n".join(
        [
            head(TITLE, command=command, machine=machine),
            intro,
            *counts_table(rows(result), "Must be"),
            "",
            outro,
            "## What was done",
            "",
            *_done(result),
            "",
        ]
    )


def verdict(result: Result) -> str:
    """In one line."""
    checked, told = result.checked, result.held
    never = ", ".join(f"{checked.ends[end]:,} {end}" for end in NEVER)
    return (
        f"{checked.asked:,} requests, {result.done.total()} faults: {never}, {checked.hung:,} hung. "
        f"{'Held.' if told else 'Not held.'}"
    )


def rows(result: Result) -> Iterator[tuple[str, int, str]]:
    """Name, how many, and how many there may be where that is bounded."""
    checked = result.checked
    yield "asked", checked.asked, f"{result.wanted.requests:,}"
    for end in End:
        yield end, checked.ends[end], "0" if end in NEVER else ""
    yield f"hung: over later than {GRACE_S * 1000:g} ms after the deadline", checked.hung, "0"
    yield "answered, and not in the router's log", checked.unbooked, "0"
    yield "told otherwise than the router wrote down", checked.misbooked, "0"
    yield "places that the router still held at the end", round(result.left), "0"
    yield "parts that the router lacked at the end", len(result.lacks), "0"
    yield "errors of its own in the router's log", len(result.errors), "0"
    yield "faults", result.done.total(), f"{result.wanted.faults:,}"


def _done(result: Result) -> Iterator[str]:
    counts = [(part, *(str(result.done[Card(part, what)] or "") for what in What)) for part in TIMES]
    return table(("", *What), counts)


def _told(result: Result, entry: Entry, late_s: float, outcomes: Sequence[str]) -> str:
    """All that is known of a request that something is wrong with."""
    begin, end = entry.sent_s - AFTERMATH_S, entry.end_s
    met = [
        f"{span.card.what} of {span.part} from {span.from_s - entry.sent_s:+.2f} s to {span.to_s - entry.sent_s:+.2f} s"
        for span in result.spans
        if span.from_s <= end and begin <= span.to_s
    ]
    way = "by way of the wire" if entry.wire else "straight"
    body = result.bodies.get(entry.id, b"").decode(errors="replace")[:2000]
    took_s = entry.end_s - entry.sent_s
    return (
        f"{entry.id}, sent {way}: {entry.verdict} after {took_s:.3f} s, {late_s * 1000:.0f} ms late; "
        f"in the log: {', '.join(outcomes) or 'nothing'}; meanwhile: {'; '.join(met) or 'nothing'} {body}"
    )


def lines(result: Result) -> Iterator[str]:
    """The same for the terminal, and the first of what must never be."""
    for name, count, must in rows(result):
        yield f"  {name:<64}{count:>8,}{f'  (must be {must})' if must else ''}"
    yield f"  the machine stood still for {result.still_s:.1f} s of {result.took_s:.0f} s"
    yield f"  requests that left the client late: {result.client_late:.2%}"
    for mark, entry, late_s, outcomes in result.checked.kept:
        yield f"  {mark}: {_told(result, entry, late_s, outcomes)}"
    yield from (f"  {error}" for error in (*result.lacks, *result.errors[:10]))
    yield verdict(result)
