"""A burst of ten times what the workers can do, over real processes: what is let in is answered, the rest is told no.

Rates are multiples of the capacity that is measured on the same stand just before, so that it is a burst on any
machine; what is asserted are ends and ratios, never milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from loadtests.cluster.making import CHAT
from loadtests.cluster.stand import Shape, Stand, key_of, stand
from loadtests.judging.answers import Verdict
from loadtests.load import capacity
from loadtests.load.arrivals import asks
from loadtests.load.client import Client
from loadtests.load.ledger import Ledger
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.runs.integrity import logs
from loadtests.runs.integrity.checker import Checked, Checker, End, Entry
from loadtests.runs.integrity.listener import Listener
from loadtests.runs.integrity.questions import MAX_TOKENS, Kept, Questions
from loadtests.scenarios.distributions import constant
from loadtests.stillness import Stillness

SHAPE = Shape(workers=2, slots=2, step_ms=8, answer_tokens=20)  # a right answer has about so many
DEADLINE_S = 2.0
BURST_FROM_S, BURST_TO_S, RUN_S = 5.0, 9.0, 17.0
MISSED = ("refused:deadline_exceeded", "failed:stream_error")  # after a worker had them
CALM, BURST = 0.5, 10.0  # times the capacity
STALL_S = 0.3  # more than a busy machine takes from a timer here and there


@dataclass
class Played:
    """A burst that is over."""

    checked: Checked
    entries: list[Entry]
    ledger: Ledger
    per_s: float
    stops: Stillness

    def between(self, begin: float, end: float) -> list[Entry]:
        """Those that were due in a stretch, in seconds after the start."""
        return [entry for entry in self.entries if begin <= entry.seen.sent_s - self.start_s < end]

    @property
    def start_s(self) -> float:
        return min(entry.seen.sent_s for entry in self.entries)

    def lost_s(self, begin: float, end: float) -> float:
        """For how long the machine stood still in a stretch, in seconds after the start."""
        return self.stops.between(self.start_s + begin, self.start_s + end)

    def felt_a_stall(self, entry: Entry) -> bool:
        """The machine stood still while it was under way, or not a deadline before: as good as a burst of its own."""
        return self.stops.between(entry.seen.sent_s - DEADLINE_S, entry.seen.end_s) > STALL_S


def plan(per_s: float) -> Plan:
    steps = (Step(0, CALM * per_s), Step(BURST_FROM_S, BURST * per_s), Step(BURST_TO_S, CALM * per_s))
    tenant = Tenant(
        CHAT, steps, deadline_ms=1000 * DEADLINE_S, stream=0.5, key=key_of(CHAT), answer_tokens=constant(MAX_TOKENS)
    )  # fmt: skip
    return Plan(seconds=RUN_S, tenants=(tenant,), warmup_s=0, cooldown_s=0)


async def play(made: Stand) -> Played:
    measured = await capacity.measure(made, seconds=2)
    assert made.router is not None
    pid = made.router.process.pid
    wanted, listener, still = plan(measured.per_s), Listener(), Stillness(lambda: [pid])
    client = Client(
        wanted, made.url, asks(wanted), requests=Questions(made.url), answer=Kept, listen=listener.record
    )  # fmt: skip
    stops = Stillness()  # the machine's alone: who waits his turn for a processor is no stall
    beating = [asyncio.create_task(each.beat()) for each in (still, stops)]
    ledger = await client.run()
    for each in beating:
        each.cancel()
    await made.router.process.stop()
    book = logs.read_router_log(made.router.process.log)
    checked = Checker([], still.between).check(listener.entries, book, unasked=client.unasked)
    return Played(checked, listener.entries, ledger, measured.per_s, stops)


def test_a_burst_is_refused_at_once_and_what_was_let_in_is_answered_and_afterwards_all_is_well() -> None:
    async def main() -> Played:
        async with stand(SHAPE, [CHAT]) as made:
            return await play(made)

    played = asyncio.run(main())
    told = f"{played.checked}, {played.ledger.tries}, capacity {played.per_s:.0f}/s"
    assert played.checked.clean, told
    assert set(played.checked.ends) <= {End.RIGHT, End.REFUSED, End.FAILED, End.CUT, End.DOUBLED}, (
        told
    )  # nobody was dropped
    missed = sum(played.ledger.tries[ending] for ending in MISSED)
    assert missed < 0.2 * played.checked.ends[End.RIGHT], told  # let in means answered; without admission most are not
    during = ends(played.between(BURST_FROM_S, BURST_TO_S))
    assert during[Verdict.REFUSED] > during.total() / 2, told  # it was a burst
    working_s = BURST_TO_S - BURST_FROM_S - played.lost_s(BURST_FROM_S, BURST_TO_S)
    assert during[Verdict.RIGHT] > 0.5 * played.per_s * working_s, told  # and did not stop the work
    later = played.between(BURST_TO_S + DEADLINE_S, RUN_S)
    after = ends(entry for entry in later if not played.felt_a_stall(entry))
    assert after[Verdict.RIGHT] >= 0.9 * after.total(), told  # one deadline later it is over
    assert ends(later)[Verdict.RIGHT] > 0, told
    assert all(refusal.hint_ms for refusal in played.ledger.refusals if refusal.should_retry), told


def ends(entries: Iterable[Entry]) -> Counter[Verdict | None]:
    return Counter(entry.seen.verdict for entry in entries)
