"""Surplus round robin: members take turns, pay what they used, and may owe.

Deficit Round Robin (Shreedhar and Varghese, SIGCOMM '95) gives each member a quantum per round and serves it while its
deficit covers the next packet. An answer's length is not known before it ends, so this is the surplus form: a member is
served while its deficit is *positive*, pays an estimate, and the difference to what it really used is put right later
(`settle`), whether it is still here or not. Elastic Round Robin (Kanhere, Sethu and Parekh 2002) met the same question
for packets whose length shows only when they have passed.

    every round:         given += quantum           to each, per unit of weight
    deficit of member i: deficit_i + (given - since_i) * weight_i
    served while it is above 0, and otherwise not before given > since_i - deficit_i / weight_i

That last line is what keeps debt cheap. Deficits stand relative to one counter, so a member deep in debt is not visited
round by round: it waits in a heap under what must be given until it turns positive, and when everyone is in debt the
counter jumps (a *bulk round*). It also makes a change of quantum hold from here on and not for rounds that are past.

Only members with work are here. One that has none left goes at once, and two rules hold for its return:

- It keeps its debt, or "one huge request, pause, repeat" would be free. Rounds that pass while it is away pay the debt
  off as they would have, had it stayed. So does time, which brings it back to one whole quantum with a half-life, for
  when no other member makes the rounds turn. And what is kept is capped. Time and cap forgive what has been settled:
  what is in flight stays charged in full until its refund, or the refund would be given on top.
- It saves nothing up: a member that comes back has one quantum at most, and in the round in which it left what is left
  of that round's quantum. So a member gets one quantum per round, however it comes and goes.

A member that comes with a positive deficit goes on the *new* list, ahead of the others (FQ-CoDel, RFC 8290): one that
uses less than its share does not wait for the round. There, a flow that empties stays in the ring for one more visit,
so that it is not new twice in a row; here the second rule does that, and holds as well against one that empties in time
for its visit, which is worth two quanta a round there.

Bound, for a member g with work over a whole interval and any other member f, however that one comes and goes, with C
the largest estimate, and E the most by which what was in flight was estimated too high plus too low:
W_f/w_f - W_g/w_g <= 2 Q + (C + E_f)/w_f + (C + E_g)/w_g.
With a fixed order of visits one Q would do; a debtor's return is not in its old place, and that costs the second.
Half-life and cap forgive debt beyond the bound, on purpose.
Cost: O(1) for a turn in this round or the next, O(log n) for a debtor of several rounds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import floor, inf, nextafter
from typing import Generic, TypeVar

from services.core.schedulable import LATER, NEW, NEXT, NOW, OUT, Schedulable

M = TypeVar("M", bound=Schedulable)
Entry = tuple[float, int, M]

DUST = 1e-6
"""Of a quantum: a deficit below this is rounding, and buys no request."""

ROUNDS = 4
"""Rounds that their mean work looks back on."""


class Ring(Generic[M]):
    """Members by turn. `front` names whose turn it is; the owner serves one request of it and says what it cost.

    `backlog` is the sum over members.
    """

    __slots__ = (
        "_aside",
        "_before",
        "_later",
        "_new",
        "_next",
        "_now",
        "_pushes",
        "_served",
        "_served_new",
        "_stale",
        "_turned_at",
        "_turned_new_at",
        "backlog",
        "debt_half_life_s",
        "debt_quanta",
        "given",
        "new_work",
        "quantum",
        "round",
        "round_work",
    )

    def __init__(self, quantum: float, *, debt_quanta: float = 16.0, debt_half_life_s: float = 60.0) -> None:
        if not (0 < quantum < inf and debt_quanta >= 0 and debt_half_life_s > 0):
            raise ValueError("quantum and half-life must be above 0, and the debt kept not below 0")
        self.quantum = quantum
        self.debt_quanta = debt_quanta
        self.debt_half_life_s = debt_half_life_s
        self.given = 0.0
        self.round = 0
        self.round_work = 0.0
        self._served = 0.0  # all charges so far
        self._turned_at = 0.0  # of which before this round
        self.new_work = 0.0
        self._served_new = 0.0  # charges of newcomers so far
        self._turned_new_at = 0.0
        self.backlog = 0
        # OrderedDict, not dict: taking the first key of a dict again and again walks over its dead entries.
        self._new: OrderedDict[M, None] = OrderedDict()
        self._now: OrderedDict[M, None] = OrderedDict()
        self._next: OrderedDict[M, None] = OrderedDict()
        self._later: list[Entry[M]] = []
        self._pushes = 0
        self._stale = 0  # entries of the heap above whose member stands elsewhere by now
        self._aside: list[tuple[M, float]] = []
        self._before = (0.0, 0, 0.0, 0.0, 0.0, 0.0)  # the decision began here

    # ---- coming, being served, going

    def add_backlog(self, now: float, member: M) -> None:
        """The member can start one request more. One that is in the ring keeps its place."""
        self.backlog += 1
        member.backlog += 1
        if member.position is not OUT:
            return
        member.deficit = deficit = self.deficit_at(now, member)
        member.since = self.given
        if deficit > DUST * self.quantum * member.weight:
            member.position = NEW
            self._new[member] = None
        else:
            self._wait(member)

    def remove_backlog(self, now: float, member: M) -> None:
        """The member has one request less to start: it starts, was cancelled, or expired. With its last it goes."""
        self.backlog -= 1
        member.backlog -= 1
        assert self.backlog >= member.backlog >= 0, f"{member!r}: {member.backlog} left of {self.backlog}"
        if not member.backlog:
            self._leave(now, member)
        if not self.backlog:
            self._turned_at, self._turned_new_at = self._served, self._served_new

    def front(self) -> M | None:
        """Whose turn it is. None when no member has work, or all that have are skipped."""
        dust = DUST * self.quantum
        while True:
            if self._new:
                member = next(iter(self._new))
                if member.deficit > dust * member.weight:
                    return member
                del self._new[member]
            elif self._now:
                member = next(iter(self._now))
                if member.since != self.given:
                    self._add_quanta(member)
                member.position = NOW
                if member.deficit > dust * member.weight:
                    return member
                del self._now[member]
            elif self._turn_round():
                continue
            else:
                return None
            self._wait(member)

    def charge(self, member: M, cost: float) -> None:
        """The member at the front starts a request of this estimated cost."""
        member.deficit -= cost
        member.unsettled += cost
        self._served += cost
        if member.position is NEW:
            self._served_new += cost

    def settle(self, now: float, member: M, refund: float, ended: float = 0.0) -> None:
        """Put a charge right by `refund` (negative: it cost more), wherever the member stands by now.

        `ended` is what it comes to when nothing of it is in flight any more.
        """
        self._served -= refund
        if member.position is OUT:
            deficit = self.deficit_at(now, member) + refund
            member.unsettled -= refund + ended
            self._keep(member, deficit)
            member.since, member.left_at = self.given, now
            return
        member.deficit += refund
        member.unsettled -= refund + ended
        if member.position is LATER and refund > 0:
            due = self._due(member)
            if (due - self.given) // self.quantum < (member.due - self.given) // self.quantum:  # an earlier round
                self._stale += 1
                self._stand(member)

    def inherit_debt(self, now: float, member: M, owed: float) -> None:
        """The member, which is out, owes this much more: debt that it had elsewhere."""
        self.settle(now, member, -owed, owed)
        self._served -= owed

    def reweigh(self, member: M, weight: float) -> None:
        """The member's weight from here on. Rounds that are past count with the old one."""
        if member.since != -inf:
            member.deficit += (self.given - member.since) * member.weight
            member.since = self.given
            if member.position is OUT:
                member.deficit = min(member.deficit, self.quantum * member.weight)
        member.weight = weight
        if member.position is LATER:
            self._stale += 1
            self._stand(member)

    # ---- passing over, within one decision

    def skip(self, member: M) -> None:
        """Take the member at the front out of the way for the rest of one decision: its head cannot run yet."""
        if not self._aside:
            self._before = (
                self.given,
                self.round,
                self.round_work,
                self._turned_at,
                self.new_work,
                self._turned_new_at,
            )
        del (self._new if member.position is NEW else self._now)[member]
        self._aside.append((member, self.given))

    def unskip(self, started: bool) -> None:
        """The decision is made: all who were put aside are at the front again.

        If another one started, they stand in the round that it is now: what the rounds in between gave, they could not
        have used. If none did, no round has turned, or each glance at a full pool would pay all debts.
        """
        if not self._aside:
            return
        if not started:
            given, self.round, self.round_work, self._turned_at, self.new_work, self._turned_new_at = self._before
            for member, given_then in self._aside:
                member.deficit -= (given_then - given) * member.weight
            self.given = given
        for member, _ in reversed(self._aside):
            member.since = self.given
            if member.deficit > self._dust(member):
                members = self._new if member.position is NEW else self._now
                members[member] = None
                members.move_to_end(member, last=False)
        for member, _ in self._aside:
            if member.deficit <= self._dust(member):
                self._stand(member)
        self._aside.clear()

    # ---- what is asked of it

    def deficit_at(self, now: float, member: Schedulable) -> float:
        """The member's deficit as of now. For one that is out: what it would come back with."""
        deficit = member.deficit + (self.given - member.since) * member.weight
        if member.position is not OUT:
            return deficit
        full = self.quantum * member.weight
        short = full - deficit - member.unsettled
        if short > 0:
            left: float = 0.5 ** ((now - member.left_at) / self.debt_half_life_s)
            deficit += short * (1.0 - left)
        return deficit if deficit < full else full

    def would_be_new(self, member: Schedulable, deficit: float) -> bool:
        """Whether it would go ahead of those who take turns: it is away, and has not used its quantum up."""
        return member.position is OUT and deficit > DUST * self.quantum * member.weight

    def owed(self, now: float, member: Schedulable) -> float:
        """The settled part of what a member that is out owes, as of now: 0 or more."""
        return max(0.0, -self.deficit_at(now, member) - member.unsettled)

    def work_until_turn(self, member: Schedulable, deficit: float, ahead: float, part: float) -> float:
        """Work of all members before the turn in which this one, standing so, starts what is behind `ahead` of its own.

        `part` is what one member has in a round, on average. What the members have now does not show who comes back in
        every round, so rounds are measured as well, and in each what newcomers took, who go first:

            new          those that are new already
            this round   its newcomers, and half of those who have a turn in it; a round for every further turn
            a later one  the rest of this, the next one's newcomers, all who wait for it; a round for every further turn
        """
        if not self.backlog:
            return 0.0
        if member.position is OUT and deficit > DUST * self.quantum * member.weight:
            return len(self._new) * part
        owed = ahead - deficit
        rounds = floor(owed / (self.quantum * member.weight) + DUST) + 1  # whose quanta are more than that
        if member.position is not OUT and member.since < self.given and member.due < self.given:
            gone_new = self._served_new - self._turned_new_at
            newcomers = max(len(self._new) * part, self.new_work - gone_new)
            turn = max(newcomers + 0.5 * len(self._now) * part, self.round_work - (self._served - member.turned_at))
            return turn + max(0, rounds) * self.round_work
        if rounds < 1:
            return 0.0
        gone = self._served - self._turned_at
        rest = max((len(self._new) + len(self._now)) * part, self.round_work - gone)
        return rest + self.new_work + len(self._next) * part + (rounds - 1) * self.round_work

    def lines(self) -> tuple[Iterable[M], Iterable[M], Iterable[M], Iterable[Entry[M]]]:
        """Members that are new, have a turn in this round, in the next, and in later ones: for `serviceorder.py`."""
        return self._new, self._now, self._next, filter(self._awaited, self._later)

    # ---- turns

    def _add_quanta(self, member: M) -> None:
        member.deficit += (self.given - member.since) * member.weight
        member.since = self.given

    def _dust(self, member: Schedulable) -> float:
        return DUST * self.quantum * member.weight

    def _due(self, member: Schedulable) -> float:
        return member.since + DUST * self.quantum - member.deficit / member.weight

    def _wait(self, member: M) -> None:
        member.turned_at = self._served
        self._stand(member)

    def _stand(self, member: M) -> None:
        """Line up for the round in which the deficit turns positive.

        An older entry in the heap is told by what it waits for, and passed over.
        """
        due = member.due = self._due(member)
        if due < self.given:
            member.position = NOW
            self._now[member] = None
        elif due < self.given + self.quantum:
            member.position = NEXT
            self._next[member] = None
        else:
            member.position = LATER
            self._pushes += 1
            heappush(self._later, (due, self._pushes, member))
        if self._stale > 64 + len(self._later) // 2:
            self._later = [entry for entry in self._later if self._awaited(entry)]
            heapify(self._later)
            self._stale = 0

    def _turn_round(self) -> bool:
        """On to the next round in which any member has a turn; False when none is left."""
        later = self._later
        while later and not self._awaited(later[0]):
            heappop(later)
            self._stale -= 1
        if not self._next and not later:
            return False
        turned = 1 if self._next else max(1, floor((later[0][0] - self.given) / self.quantum) + 1)
        self.round += turned
        self.given = max(self.given + turned * self.quantum, nextafter(self.given, inf))
        self._measure_rounds(turned)
        self._now, self._next = self._next, self._now
        while later and later[0][0] < self.given:
            entry = heappop(later)
            if self._awaited(entry):
                entry[2].position = NOW
                self._now[entry[2]] = None
            else:
                self._stale -= 1
        return True

    def _measure_rounds(self, turned: int) -> None:
        """Keep the mean work of a round, over about the last ROUNDS of them."""
        served, served_new = self._served, self._served_new
        each = max(0.0, served - self._turned_at) / turned  # refunds may outweigh what a short round served
        each_new = (served_new - self._turned_new_at) / turned
        self._turned_at, self._turned_new_at = served, served_new
        weight = 1.0 - (1.0 - 1.0 / ROUNDS) ** turned if self.round_work else 1.0
        self.round_work += weight * (each - self.round_work)
        self.new_work += weight * (each_new - self.new_work)

    @staticmethod
    def _awaited(entry: Entry[M]) -> bool:
        due, _, member = entry
        return member.position is LATER and member.due == due

    def _leave(self, now: float, member: M) -> None:
        if member.since != self.given:
            self._add_quanta(member)
        if member.position is LATER:
            self._stale += 1
        elif member.position is NEW:
            del self._new[member]
        else:  # the members of a round that has begun are told from those of the next when they are visited
            del (self._next if member in self._next else self._now)[member]
        self._keep(member, member.deficit)
        member.position = OUT
        member.left_at = now

    def _keep(self, member: M, deficit: float) -> None:
        """What one that is out keeps: one quantum at most, and the debt, capped but for what is in flight."""
        quantum = self.quantum * member.weight
        least = -self.debt_quanta * quantum - max(0.0, member.unsettled)
        member.deficit = least if deficit < least else min(deficit, quantum)

    def __repr__(self) -> str:
        turns = f"{len(self._new)} new, {len(self._now)} now, {len(self._next)} next, {len(self._later)} later"
        return f"<Ring round {self.round}, quantum {self.quantum:g}: {turns}>"
