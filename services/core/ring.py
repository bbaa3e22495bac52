"""Surplus round robin: members take turns, pay estimated costs, and may owe (docs/architecture/mechanisms/fairness.md).

    every round:         given += quantum           to each, per unit of weight
    deficit of member i: deficit_i + (given - since_i) * weight_i
    served while it is above 0, and otherwise not before given > since_i - deficit_i / weight_i

This is Deficit Round Robin (Shreedhar and Varghese, SIGCOMM 1995) for costs that are known only at the end: a member
pays an estimate, and gets or pays the difference later (`settle`), even if it has left the ring. Deficits are relative
to one counter, so a member deep in debt waits in a heap and is not visited each round, and if all are in debt the
counter jumps (a *bulk round*). A change of quantum does not change past rounds.

Only members with work are in the ring. Rules for their return, the bound and its proof are in the page. Two reasons
that are not: half-life and cap apply to settled debt only, because forgiven charges of a running request would be
refunded on top. And a member that returns in the round in which it left has what it had left of that round's quantum,
so it gets one quantum per round however it comes and goes. In FQ-CoDel (RFC 8290) an emptied flow stays for one more
visit instead, which is worth two quanta a round to a flow that empties just in time.
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
"""Share of a quantum: a smaller deficit is rounding, and starts no request."""

ROUNDS = 4
"""Rounds over which their work is averaged."""


class Ring(Generic[M]):
    """Members in turn. `front` returns the next one; the owner starts one request of it and calls `charge`.

    `backlog` is the sum over members. Raises ValueError unless quantum and half-life are above 0 and the cap is >= 0.
    """

    __slots__ = (
        "_before",
        "_later",
        "_new",
        "_next",
        "_now",
        "_pushes",
        "_served",
        "_served_before",
        "_served_new",
        "_served_new_before",
        "_skipped",
        "_stale",
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
        self._served = 0.0  # all charges, less refunds
        self._served_before = 0.0  # `_served` when this round began
        self.new_work = 0.0
        self._served_new = 0.0  # charges of members on the new list
        self._served_new_before = 0.0
        self.backlog = 0
        # OrderedDict, not dict: reading the first key of a dict walks over the entries deleted before it.
        self._new: OrderedDict[M, None] = OrderedDict()
        self._now: OrderedDict[M, None] = OrderedDict()
        self._next: OrderedDict[M, None] = OrderedDict()
        self._later: list[Entry[M]] = []
        self._pushes = 0
        self._stale = 0  # entries of that heap whose member is elsewhere by now
        self._skipped: list[tuple[M, float]] = []
        self._before = (0.0, 0, 0.0, 0.0, 0.0, 0.0)  # state at the first skip of a decision

    # ---- backlog, turns, charges

    def add_backlog(self, now: float, member: M) -> None:
        """The member can start one more request. A member that is in the ring keeps its place."""
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
        """The member can start one request less, for any reason. It leaves the ring with its last."""
        self.backlog -= 1
        member.backlog -= 1
        assert self.backlog >= member.backlog >= 0, f"{member!r}: {member.backlog} left of {self.backlog}"
        if not member.backlog:
            self._leave(now, member)
        if not self.backlog:
            self._served_before, self._served_new_before = self._served, self._served_new
            self._later.clear()  # all entries are stale
            self._stale = self._pushes = 0

    def front(self) -> M | None:
        """The member whose turn it is. None if no member has work, or all that have are skipped."""
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

    def credit(self, now: float, member: M) -> float:
        """The deficit of a member that is out, if it would be served at once in an empty ring; else 0."""
        deficit = self._deficit_out(now, member)
        return deficit if deficit > DUST * self.quantum * member.weight else 0.0

    def serve_at_once(self, now: float, member: M, cost: float, *, pays: bool = False) -> bool:
        """Start a request of a member while the ring is empty, as if it came, was served and left. False, and no
        change, if it is in debt; or, where it `pays`, if rounding leaves it in debt after the rounds that pay it.
        """
        assert not self.backlog, f"{member!r} is served at once, and {self!r} has work"
        deficit = self._deficit_out(now, member)
        if deficit > DUST * self.quantum * member.weight:
            self._served_new += cost
        else:
            if pays:
                deficit = self._paid_alone(member, deficit)
            if deficit <= DUST * self.quantum * member.weight:
                return False
        member.unsettled += cost
        self._served = self._served_before = self._served + cost
        self._served_new_before = self._served_new
        self._keep(member, deficit - cost)
        member.since, member.left_at = self.given, now
        return True

    def settle(self, now: float, member: M, refund: float, ended: float = 0.0) -> None:
        """Correct a charge by `refund` (negative: it cost more), wherever the member is by now.

        `ended` is the settled cost of a request that is no longer in flight.
        """
        self._served -= refund
        if member.position is OUT:
            deficit = self._deficit_out(now, member) + refund
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
                self._place(member)

    def inherit_debt(self, now: float, member: M, owed: float) -> None:
        """Add debt from elsewhere to a member, in turn or out of the ring; a negative one is a refund.

        The work was not served here, so measured rounds do not count it.
        """
        self.settle(now, member, -owed, owed)
        self._served -= owed

    @property
    def served(self) -> float:
        """All charges, less refunds, in token-equivalents. Debt that was inherited is not in it."""
        return self._served

    def advance(self, given: float) -> None:
        """Go on to this virtual time, without members: the ring has work at other routers. Debts are paid by it."""
        assert not self.backlog, f"{self!r} has work, and is set to {given:g}"
        if given > self.given:
            self.given = given

    def reweigh(self, member: M, weight: float) -> None:
        """Change the member's weight. Past rounds count with the old one."""
        if member.since != -inf:
            member.deficit += (self.given - member.since) * member.weight
            member.since = self.given
            if member.position is OUT:
                member.deficit = min(member.deficit, self.quantum * member.weight)
        member.weight = weight
        if member.position is LATER:
            self._stale += 1
            self._place(member)

    # ---- skipping within one decision

    def skip(self, member: M) -> None:
        """Skip the member at the front for the rest of one decision: its head cannot start yet."""
        if not self._skipped:
            self._before = (
                self.given,
                self.round,
                self.round_work,
                self._served_before,
                self.new_work,
                self._served_new_before,
            )
        del (self._new if member.position is NEW else self._now)[member]
        self._skipped.append((member, self.given))

    def unskip(self, started: bool) -> None:
        """End a decision: all skipped members are at the front again.

        If another member started, they stay in the present round and get nothing of the rounds between, which they
        could not have used. If none did, the rounds are undone: otherwise each look at a full pool would pay debts.
        """
        if not self._skipped:
            return
        if not started:
            given, self.round, self.round_work, self._served_before, self.new_work, self._served_new_before = (
                self._before
            )
            for member, given_then in self._skipped:
                member.deficit -= (given_then - given) * member.weight
            self.given = given
        for member, _ in reversed(self._skipped):
            member.since = self.given
            if member.deficit > self._dust(member):
                members = self._new if member.position is NEW else self._now
                members[member] = None
                members.move_to_end(member, last=False)
        for member, _ in self._skipped:
            if member.deficit <= self._dust(member):
                self._place(member)
        self._skipped.clear()

    # ---- queries

    def deficit_at(self, now: float, member: Schedulable) -> float:
        """The member's deficit now. For a member that is out: what it would return with."""
        if member.position is not OUT:
            return member.deficit + (self.given - member.since) * member.weight
        return self._deficit_out(now, member)

    def _deficit_out(self, now: float, member: Schedulable) -> float:
        weight = member.weight
        deficit, full = member.deficit + (self.given - member.since) * weight, self.quantum * weight
        short = full - deficit - member.unsettled
        if short > 0:
            left: float = 0.5 ** ((now - member.left_at) / self.debt_half_life_s)
            deficit += short * (1.0 - left)
        return deficit if deficit < full else full

    def would_be_new(self, member: Schedulable, deficit: float) -> bool:
        """Whether it would go on the new list: it is out and has a positive deficit."""
        return member.position is OUT and deficit > DUST * self.quantum * member.weight

    def owed(self, now: float, member: Schedulable) -> float:
        """The settled debt of a member that is out: 0 or more."""
        return max(0.0, -self.deficit_at(now, member) - member.unsettled)

    def work_until_turn(self, member: Schedulable, deficit: float, ahead: float, part: float) -> float:
        """Work of all members before the turn in which this one starts what is behind `ahead` of its own work.

        `part` is the mean work of one member in a round. Members return in every round, which the present members do
        not show, so the prediction also uses measured rounds and the work of new members in them, who go first:

            new          the other new members
            this round   its new members, and half of those with a turn in it; a round for every further turn
            a later one  the rest of this round, the next one's new members, and all who wait for it; a round for every
                         further turn
        """
        if not self.backlog:
            return 0.0
        if member.position is OUT and deficit > DUST * self.quantum * member.weight:
            return len(self._new) * part
        owed = ahead - deficit
        rounds = floor(owed / (self.quantum * member.weight) + DUST) + 1  # whose quanta exceed what is owed
        if member.position is not OUT and member.since < self.given and member.due < self.given:
            gone_new = self._served_new - self._served_new_before
            newcomers = max(len(self._new) * part, self.new_work - gone_new)
            turn = max(newcomers + 0.5 * len(self._now) * part, self.round_work - (self._served - member.turn_ended_at))
            return turn + max(0, rounds) * self.round_work
        if rounds < 1:
            return 0.0
        gone = self._served - self._served_before
        rest = max((len(self._new) + len(self._now)) * part, self.round_work - gone)
        return rest + self.new_work + len(self._next) * part + (rounds - 1) * self.round_work

    def members_by_turn(self) -> tuple[Iterable[M], Iterable[M], Iterable[M], Iterable[Entry[M]]]:
        """Members that are new, and those with a turn in this, the next and later rounds (for `serviceorder.py`)."""
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
        member.turn_ended_at = self._served
        self._place(member)

    def _place(self, member: M) -> None:
        """Put the member where its deficit turns positive: this round, the next, or the heap of later ones.

        Its older entries in the heap have another `due` and are skipped.
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
        """Go to the next round in which a member has a turn. False if there is none."""
        later = self._later
        while later and not self._awaited(later[0]):
            heappop(later)
            self._stale -= 1
        if not self._next and not later:
            return False
        rounds = 1 if self._next else max(1, floor((later[0][0] - self.given) / self.quantum) + 1)
        self.round += rounds
        self.given = max(self.given + rounds * self.quantum, nextafter(self.given, inf))
        self._measure_rounds(rounds)
        self._now, self._next = self._next, self._now
        while later and later[0][0] < self.given:
            entry = heappop(later)
            if self._awaited(entry):
                entry[2].position = NOW
                self._now[entry[2]] = None
            else:
                self._stale -= 1
        return True

    def _paid_alone(self, member: M, deficit: float) -> float:
        """Go to the round in which the only member with work, which has this deficit, has a turn: its deficit then."""
        due = member.due = self.given + DUST * self.quantum - deficit / member.weight
        rounds = max(1, floor((due - self.given) / self.quantum) + 1)
        given = max(self.given + rounds * self.quantum, nextafter(self.given, inf))
        paid = deficit + (given - self.given) * member.weight
        if paid > DUST * self.quantum * member.weight:
            member.turn_ended_at = self._served
            self.round += rounds
            self.given = given
            self._measure_rounds(rounds)
        return paid

    def _measure_rounds(self, rounds: int) -> None:
        """Update the mean work per round, over about the last ROUNDS."""
        served, served_new = self._served, self._served_new
        each = max(0.0, served - self._served_before) / rounds  # refunds may exceed what a short round served
        each_new = (served_new - self._served_new_before) / rounds
        self._served_before, self._served_new_before = served, served_new
        weight = 1.0 - (1.0 - 1.0 / ROUNDS) ** rounds if self.round_work else 1.0
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
        else:  # a member of this round has position NEXT until it is visited, so its dict must be looked up
            del (self._next if member in self._next else self._now)[member]
        self._keep(member, member.deficit)
        member.position = OUT
        member.left_at = now

    def _keep(self, member: M, deficit: float) -> None:
        """Set what a member keeps while it is out: at most one quantum, and capped debt plus all that is in flight."""
        quantum = self.quantum * member.weight
        if deficit >= 0.0:
            member.deficit = deficit if deficit < quantum else quantum
            return
        lowest = -self.debt_quanta * quantum - max(0.0, member.unsettled)
        member.deficit = lowest if deficit < lowest else deficit

    def __repr__(self) -> str:
        turns = f"{len(self._new)} new, {len(self._now)} now, {len(self._next)} next, {len(self._later)} later"
        return f"<Ring round {self.round}, quantum {self.quantum:g}: {turns}>"
