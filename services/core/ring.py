"""Surplus round robin: members take turns, pay what they used, and may owe.

Deficit Round Robin (Shreedhar and Varghese, SIGCOMM '95) gives each member a quantum per round and serves it while its
deficit covers the next packet. An answer's length is not known before it ends, so this is the surplus form: a member is
served while its deficit is *positive*, pays an estimate, and the difference to what it really used is put right later
(`settle`), whether it is still here or not. Elastic Round Robin (Kanhere, Sethu and Parekh 2002) met the same question
for packets whose length shows only when they have passed.

    visit of member i at round r:   deficit_i += quantum * weight_i     once per round
    served while                    deficit_i > 0
    otherwise its next turn is at   r + floor(-deficit_i / (quantum * weight_i)) + 1

That last line is what keeps debt cheap. Deficits stand relative to one counter of rounds, so a member deep in debt is
not visited round by round: it waits in a heap under the round in which it turns positive, and when everyone is in debt
the counter jumps (a *bulk round*).

A member that comes back with no debt goes on the *new* list for one quantum, ahead of the others (FQ-CoDel, RFC 8290).
Its guard is the same as there: a member leaves only through a visit that finds it empty, and one that empties on the
new list gets that visit in the next round, so nobody is new twice in a row.

An idle member keeps no credit, or pauses could be saved up for a burst. It keeps its debt, or "one huge request, pause,
repeat" would be free. Rounds that pass while it is away pay the debt off as they would have, had it stayed; so does
time, with a half-life, for when nobody makes the rounds turn.

Bound, for members f and g with work over a whole interval, cost C at most, and work I in flight and not yet settled:
|W_f/w_f - W_g/w_g| <= Q + (C + I_f)/w_f + (C + I_g)/w_g.
Cost: O(1) for a turn in this round or the next, O(log n) for a debtor of several rounds.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from heapq import heappop, heappush
from math import floor
from typing import Generic, TypeVar


class Turn(Enum):
    """Where a member stands in the ring."""

    OUT = "out"
    NEW = "new"
    NOW = "now"
    NEXT = "next"
    LATER = "later"


WAITS = (Turn.NEXT, Turn.LATER)


class Member:
    """Someone who takes turns. `backlog` counts the requests that it could start now."""

    __slots__ = ("backlog", "deficit", "due", "left_at", "since", "turn", "turned_at", "weight")

    def __init__(self, weight: float) -> None:
        if not 0 < weight < float("inf"):
            raise ValueError(f"weight must be above 0 and finite, got {weight}")
        self.weight = weight
        self.backlog = 0
        self.deficit = 0.0
        self.turn = Turn.OUT
        self.since = 0  # the round up to which quanta have been added to the deficit
        self.due = 0  # in NEXT and LATER: the round of its turn
        self.left_at = 0.0
        self.turned_at = 0.0  # what the ring had served when its last turn ended


M = TypeVar("M", bound=Member)

DUST = 1e-6
"""Of a quantum: a deficit or debt below this is rounding. It buys no request, and costs no place on the new list."""

ROUNDS = 4
"""Rounds that their mean work looks back on."""


class Ring(Generic[M]):
    """Members by turn. `front` names whose turn it is; the owner serves one request of it and says what it cost.

    `backlog` is the sum over members: when it is 0, `front` sends everyone home.
    """

    __slots__ = (
        "_later",
        "_new",
        "_next",
        "_now",
        "_pushes",
        "_served",
        "_turned_at",
        "backlog",
        "debt_half_life_s",
        "debt_quanta",
        "quantum",
        "round",
        "round_work",
    )

    def __init__(self, quantum: float, *, debt_quanta: float = 16.0, debt_half_life_s: float = 60.0) -> None:
        if not (quantum > 0 and debt_quanta >= 0 and debt_half_life_s > 0):
            raise ValueError("quantum and half-life must be above 0, and the debt kept not below 0")
        self.quantum = quantum
        self.debt_quanta = debt_quanta
        self.debt_half_life_s = debt_half_life_s
        self.round = 0
        self.round_work = 0.0
        self._served = 0.0  # all charges so far
        self._turned_at = 0.0  # of which before this round
        self.backlog = 0
        # OrderedDict, not dict: taking the first key of a dict again and again walks over its dead entries.
        self._new: OrderedDict[M, None] = OrderedDict()
        self._now: OrderedDict[M, None] = OrderedDict()
        self._next: OrderedDict[M, None] = OrderedDict()
        self._later: list[tuple[int, int, M]] = []
        self._pushes = 0

    # ---- coming, being served, going

    def more(self, now: float, member: M) -> None:
        """The member can start one request more. One that is still in the ring, even empty, keeps its place."""
        self.backlog += 1
        member.backlog += 1
        if member.turn is not Turn.OUT:
            return
        member.deficit = self.standing(now, member)
        member.since = self.round
        if member.deficit < 0:
            self._wait(member)
            return
        member.deficit = self.quantum * member.weight
        member.turn = Turn.NEW
        self._new[member] = None

    def less(self, member: M) -> None:
        """The member has one request less to start: it starts, was cancelled, or expired."""
        self.backlog -= 1
        member.backlog -= 1

    def front(self, now: float) -> M | None:
        """Whose turn it is. None when nobody here has work; then nobody is here any more."""
        if not self.backlog:
            self._send_home(now)
            return None
        while True:
            if self._new:
                member = next(iter(self._new))
                if member.backlog and member.deficit > self._dust(member):
                    return member
                del self._new[member]
                if not member.backlog:
                    member.deficit = min(member.deficit, 0.0)
                self._wait(member)
            elif self._now:
                member = next(iter(self._now))
                self._add_quanta(member)
                member.turn = Turn.NOW
                if member.backlog and member.deficit > self._dust(member):
                    return member
                del self._now[member]
                if member.backlog:
                    self._wait(member)
                else:
                    self._leave(now, member)
            elif not self._turn_round():
                return None  # all who have work are put aside

    def charge(self, member: M, cost: float) -> None:
        """The member at the front started a request of this estimated cost."""
        member.deficit -= cost
        self._served += cost

    def settle(self, now: float, member: M, refund: float) -> None:
        """Put a charge right by `refund` (negative: it cost more), wherever the member stands by now."""
        self._served -= refund
        if member.turn is Turn.OUT:
            member.deficit = min(0.0, self.standing(now, member) + refund)
            member.since, member.left_at = self.round, now
            return
        member.deficit += refund
        if member.turn is Turn.LATER and refund > 0:
            due = member.since + self._rounds_to_wait(member)
            if due < member.due:
                self._stand(member, max(due, self.round))

    def put_aside(self, member: M) -> None:
        """Take the member at the front out of the way for the rest of one decision: its head cannot run yet."""
        del (self._new if member.turn is Turn.NEW else self._now)[member]

    def put_back(self, member: M) -> None:
        """Undo `put_aside`: at the front again, in the round that it is now, with nothing lost and nothing gained."""
        member.since = self.round
        members = self._new if member.turn is Turn.NEW else self._now
        members[member] = None
        members.move_to_end(member, last=False)

    # ---- what is asked of it

    @property
    def newcomers(self) -> int:
        """How many stand on the new list."""
        return len(self._new)

    def standing(self, now: float, member: Member) -> float:
        """The member's deficit as of now. For one that is out: its debt, less what rounds and time have paid."""
        paid = member.deficit + (self.round - member.since) * self.quantum * member.weight
        if member.turn is not Turn.OUT:
            return paid
        if paid >= -self._dust(member):
            return 0.0
        return paid * float(0.5 ** ((now - member.left_at) / self.debt_half_life_s))

    def work_until_turn(self, now: float, member: Member, ahead: float) -> float:
        """Work of all members before the turn in which this one starts what stands behind `ahead` of its own.

        Rounds are measured, so this knows what the members' present work does not show: who comes back in every round.
        A member's turn comes one round after its last.
        """
        if not self.backlog:
            return 0.0
        round_work = max(self.round_work, self._served - self._turned_at)  # this one may be the largest yet
        if member.turn is Turn.OUT or (member.since == self.round and member.turn not in WAITS):
            return max(0, self._rounds(member, ahead - self.standing(now, member))) * round_work
        turn = member.due - member.since
        left = ahead - member.deficit - turn * self.quantum * member.weight
        rounds = turn + max(0, self._rounds(member, left))
        return max(0.0, rounds * round_work - (self._served - member.turned_at))

    # ---- turns

    def _add_quanta(self, member: M) -> None:
        if member.since != self.round:
            member.deficit += (self.round - member.since) * self.quantum * member.weight
            member.since = self.round

    def _rounds_to_wait(self, member: M) -> int:
        """Rounds after `since` at which the deficit is above 0; at least one."""
        return max(1, self._rounds(member, -member.deficit))

    def _rounds(self, member: Member, owed: float) -> int:
        """Rounds whose quanta are more than what is owed."""
        return floor(owed / (self.quantum * member.weight) + DUST) + 1

    def _dust(self, member: Member) -> float:
        return DUST * self.quantum * member.weight

    def _wait(self, member: M) -> None:
        member.turned_at = self._served
        self._stand(member, self.round + self._rounds_to_wait(member))

    def _stand(self, member: M, due: int) -> None:
        """Line up for the round `due`. An older entry in the heap is told by its round, and passed over."""
        member.due = due
        if due <= self.round:
            member.turn = Turn.NOW
            self._now[member] = None
        elif due == self.round + 1:
            member.turn = Turn.NEXT
            self._next[member] = None
        else:
            member.turn = Turn.LATER
            self._pushes += 1
            heappush(self._later, (due, self._pushes, member))

    def _turn_round(self) -> bool:
        """On to the next round in which anyone has a turn; False when nobody is left."""
        later = self._later
        while later and not self._awaited(later[0]):
            heappop(later)
        if not self._next and not later:
            return False
        turned = 1 if self._next else later[0][0] - self.round
        self.round += turned
        self._measure_rounds(turned)
        self._now, self._next = self._next, self._now
        while later and later[0][0] <= self.round:
            entry = heappop(later)
            if self._awaited(entry):
                entry[2].turn = Turn.NOW
                self._now[entry[2]] = None
        return True

    def _measure_rounds(self, turned: int) -> None:
        """Keep the mean work of a round, over about the last ROUNDS of them."""
        each = max(0.0, self._served - self._turned_at) / turned  # refunds may outweigh what a short round served
        self._turned_at = self._served
        weight = 1.0 - (1.0 - 1.0 / ROUNDS) ** turned if self.round_work else 1.0
        self.round_work += weight * (each - self.round_work)

    @staticmethod
    def _awaited(entry: tuple[int, int, M]) -> bool:
        due, _, member = entry
        return member.turn is Turn.LATER and member.due == due

    def _leave(self, now: float, member: M) -> None:
        self._add_quanta(member)
        owed_at_most = self.debt_quanta * self.quantum * member.weight
        member.deficit = max(-owed_at_most, min(0.0, member.deficit))
        member.turn = Turn.OUT
        member.left_at = now

    def _send_home(self, now: float) -> None:
        """Nobody has work, so no round turns: all leave, with the debt that they have."""
        self.round_work, self._turned_at = 0.0, self._served
        for members in (self._new, self._now, self._next):
            for member in members:
                self._leave(now, member)
            members.clear()
        for entry in self._later:
            if self._awaited(entry):
                self._leave(now, entry[2])
        self._later.clear()

    def __repr__(self) -> str:
        turns = f"{len(self._new)} new, {len(self._now)} now, {len(self._next)} next, {len(self._later)} later"
        return f"<Ring round {self.round}, quantum {self.quantum:g}: {turns}>"
