"""Plays the parts that are not finished yet, one after another, and adds up the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from loadtests.report.figure import Figure, at_least, at_most
from loadtests.report.progress import Say
from loadtests.report.record import Record
from loadtests.runs.integrity import leavers, play
from loadtests.runs.integrity.checker import NEVER, End, Rule
from loadtests.runs.integrity.parts import Done, Kind, Part, Sizes, parts_of, read
from loadtests.runs.integrity.schedule import WORKER, What

PLAYS: Mapping[Kind, Callable[[Part, Say], Awaitable[Done]]] = {
    Kind.FAULTS: play.play, Kind.KILLS: play.play, Kind.NONCES: play.play, Kind.LEAVERS: leavers.play,
}  # fmt: skip
KILL = f"{WORKER}: {What.KILL}"
FREE_MS, GROWN_MB = 100.0, 5.0


@dataclass(frozen=True)
class Played:
    sizes: Sizes
    done: Sequence[Done]

    @property
    def counts(self) -> Counter[str]:
        return sum((done.counts for done in self.done), Counter())

    @property
    def faults(self) -> Counter[str]:
        """The injected faults, by "part: what"."""
        return sum((done.faults for done in self.done), Counter())

    @property
    def held(self) -> bool:
        return all(figure.held is not False for some in self.figures.values() for figure in some)

    @property
    def figures(self) -> dict[str, list[Figure]]:
        load = [part for part in parts_of(self.sizes) if part.kind is not Kind.LEAVERS]
        found = {"every request": self._requests(load)} if load else {}
        if self.sizes.leavers:
            found["clients that leave"] = self._leavers()
        return found

    def _requests(self, load: Sequence[Part]) -> list[Figure]:
        counts = self.counts
        asked = sum(part.requests for part in load)
        nonces = sum(part.requests for part in load if part.kind is Kind.NONCES)
        by_kind = {
            kind: sum((done.faults for done in self.done if done.kind == kind.value), Counter[str]()) for kind in Kind
        }
        figures = [
            at_least("sent, each with a nonce", counts["asked"], asked),
            at_least("of these before byzantine workers", self._of(Kind.NONCES)["asked"], nonces),
            at_least("faults of every component", by_kind[Kind.FAULTS].total(), self.sizes.faults),
            at_least("workers killed one at a time", by_kind[Kind.KILLS][KILL], self.sizes.kills),
            at_least("workers killed in all", self.faults[KILL], self.sizes.kills),
            *(Figure(end.value, counts[end.value]) for end in End if end not in NEVER),
            *(at_most(end.value, counts[end.value], 0) for end in NEVER),
            *(at_most(rule.value, counts[rule.value], 0) for rule in Rule),
            at_most("slots that the router still held at the end", counts["places held"], 0),
            at_most("components that the router missed at the end", counts["lacks"], 0),
            at_most("errors of its own in the router's log", counts["errors"], 0),
            at_least("sent in the light load after the last fault", counts["tail"], len(load) * play.TAIL_REQUESTS),
        ]
        if nonces:
            figures.append(Figure("answers of byzantine workers", counts["answers of evil workers"]))
            figures.append(at_least("tricks among them", counts["tricks"], 1))
        late = counts["late"] / max(1, counts["asked"])
        return [*figures, Figure("requests that left the client over 20 ms late", late, "%")]

    def _of(self, kind: Kind) -> Counter[str]:
        return sum((done.counts for done in self.done if done.kind == kind.value), Counter())

    def _leavers(self) -> list[Figure]:
        counts = self._of(Kind.LEAVERS)
        (values,) = (done.values for done in self.done if done.kind == Kind.LEAVERS.value)
        disagreeing = counts[End.DOUBLED.value] + counts[Rule.MISCOUNTED.value] + counts["errors"]
        held = f"{counts['held a place']:,} held a slot, {counts['had their whole answer']:,} had their whole answer"
        return [
            at_least("disconnects at 12 stages", counts[leavers.LEFT], self.sizes.leavers, note=held),
            Figure("slot free after its client left, p50", values["p50"], "ms"),
            at_most(
                "slot free after its client left, p99", values["p99"], FREE_MS, "ms", f"at most {values['most']:g} ms"
            ),
            at_most("requests that ended in any other way", counts[leavers.OTHERWISE], 0),
            at_most("logged twice, counted differently, or an error in the log", disagreeing, 0),
            at_most("connections that are still open", values["open"], 0),
            at_most("memory since the first waves", values["memory"], GROWN_MB, "MB"),
        ]


async def run(sizes: Sizes, record: Record, say: Say) -> Played:
    """Play the parts that the record does not have. Raises StandError if a component does not start or come back."""
    parts = parts_of(sizes)
    found = {row["part"]: read(row) for row in record.rows}
    for part in parts:
        if part.number in found:
            say(f"part {part.number} of {len(parts)}, {part.kind}: finished in an earlier run")
            continue
        left_s = sum(each.takes_s for each in parts if each.number not in found)
        what = f"{part.requests:,} requests, {part.faults} faults"
        say(f"part {part.number} of {len(parts)}, {part.kind}: {what}; all in about {left_s / 60:.0f} min")
        done = found[part.number] = await PLAYS[part.kind](part, say)
        for broken in done.kept:
            say(broken)
        record.add(vars(done))
    return Played(sizes, [found[part.number] for part in parts])
