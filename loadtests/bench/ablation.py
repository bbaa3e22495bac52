"""What each statistical refinement of the core is worth: every scenario, played with it and without it.

The simulator plays each shipped scenario that it can play, at every load that the scenario declares, with the policy
`weir` (and with answers that may be cut, where the scenario has that). Time is virtual, and a seed gives the same
arrivals with and without a refinement. So the difference of two runs is the refinement's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from loadtests.bench.ablation_plays import LARGE, PROMISES, Found, Options, Played, play, scenarios
from loadtests.bench.refinements import REFINEMENTS, Refinement
from loadtests.report.figure import Figure
from loadtests.report.page import table
from loadtests.report.progress import Say
from loadtests.report.result import Result

LOSS = {"goodput": 0.02, "on_time": 0.02, "p95": 0.05}
"""From which on a refinement earns its place: of goodput and of shares absolute, of a p95 relative."""
MIN_S = 0.002
"""A p95 that differs by less has not changed: many waits are shorter than that."""
SHOWN = 10
"""Changes of a refinement that are kept as figures."""
CLEAR = 2.0
"""Times the loss that counts: when every seed has lost so much, no other scenario needs to be played."""
ABOUT = """\
Each row plays the scenarios that the simulator can play, at every load that they declare, without one refinement of
the core. A simpler rule is in its place (`loadtests/bench/refinements.py`). A refinement that has lost twice what
counts, with every seed, is not played in the remaining scenarios; one that earns nothing was played in all. The seeds,
and so the arrivals, are the same with the refinement and without it. Steady runs are shortened to about {offers:,}
requests, or to 2 s that count; runs with phases or failures are played in full. A run of more than {large:,} requests
is played with one seed.

A refinement earns its place where every one of {seeds} seeds is worse without it, and the mean by 2 % of goodput, by
2 % of the requests of one group of tenants that are answered in time, or by 5 % of a p95 (of the wait, of the first
token, of the latency, of one group's latency); or where a bound of a scenario's file breaks{judged}. It is unclear
where the mean loses so much, and some seed does not or there is one only: longer runs decide. The table shows the
scenario where it matters most. Dropped are requests that were admitted and never started.
"""
COLUMNS = (
    "refinement", "in its place", "matters most in", "goodput:", "without:", "p95", "with:", "without:",
    "dropped:", "without:", "earns its place",
)  # fmt: skip


QUICK = {"seeds": 1, "offers": 10, "scenario": ("at_capacity",)}


class Change(NamedTuple):
    """One figure of one scenario, with a refinement and without it; `worse` is a share, above 0 for a loss."""

    where: str
    figure: str
    with_it: float
    without: float
    worse: float
    always: bool
    """Whether every seed lost, of two or more."""

    @property
    def score(self) -> float:
        """The loss beside the one from which on the refinement earns its place."""
        return self.worse / LOSS[kind(self.figure)] if kind(self.figure) in LOSS else 0.0


def measure(options: Options, say: Say) -> Result:
    """Play scenario by scenario, with every refinement and without each, until that one has shown what it is worth."""
    base: dict[str, Found] = {}
    rows, figures = [], {}
    for each in REFINEMENTS:
        if options.only and each.name not in options.only:
            continue
        say(each.name)
        with_it, without = compared(each, options, base)
        rows.append(row(each, with_it, without))
        figures[each.name] = [
            Figure(f"{one.where}: {one.figure}", one.without, note=f"{one.with_it:.4g} with it")
            for one in ranked(with_it.played, without.played)[:SHOWN]
        ]
    judged = ", or a promise of `loadtests/simulator/promises.yaml`" if options.promises else ""
    about = ABOUT.format(large=LARGE, offers=options.offers, seeds=options.seeds, judged=judged)
    return Result("Ablation of the core", figures, [about, table(COLUMNS, rows)])


def compared(refinement: Refinement, options: Options, base: dict[str, Found]) -> tuple[Found, Found]:
    """What was played with it and without it. `base` keeps what was played with all refinements."""
    with_it, without = Found({}, {}), Found({}, {})
    for name, scenario in [*scenarios(options), *([(PROMISES, None)] if options.promises else [])]:
        if name not in base:
            base[name] = play(name, scenario, options, {})
        with refinement.left_out():
            found = play(name, scenario, options, refinement.settings)
        with_it, without = with_it.and_of(base[name]), without.and_of(found)
        strongest = ranked(with_it.played, without.played)[:1]
        if not options.whole and any(one.always and one.score >= CLEAR for one in strongest):
            break
    return with_it, without


def row(refinement: Refinement, base: Found, found: Found) -> tuple[str, ...]:
    """Of the table: the scenario where it matters most, and whether the refinement earns its place."""
    strongest = ranked(base.played, found.played)[0]
    broken = sorted(name for name, held in base.promises.items() if held and not found.promises[name])
    here = {one.figure: one for one in changes({strongest.where: base.played[strongest.where]}, found.played)}
    goodput, dropped = here["goodput"], here["dropped"]
    p95 = strongest if kind(strongest.figure) == "p95" else here["latency_p95_s"]
    change = f"{strongest.figure} {strongest.with_it:.3g} to {strongest.without:.3g}"
    why = [change] if strongest.always and strongest.score >= 1 else []
    verdict = "; ".join(["yes", *why, *(f"breaks: {name}" for name in broken)]) if why or broken else "no"
    if verdict == "no" and strongest.score >= 1:
        verdict = f"unclear: {change}, not with every seed or with one only"
    return (
        refinement.name, refinement.instead, strongest.where,
        f"{goodput.with_it:.3f}", f"{goodput.without:.3f}",
        p95.figure, f"{p95.with_it:.3f} s", f"{p95.without:.3f} s",
        f"{dropped.with_it:.1%}", f"{dropped.without:.1%}", verdict,
    )  # fmt: skip


def ranked(base: Played, found: Played) -> list[Change]:
    """Losses that every seed had first, by their size."""
    return sorted(changes(base, found), key=lambda one: (one.always and one.score >= 1, one.score), reverse=True)


def kind(figure: str) -> str:
    """Of a figure, or of the same figure of a group."""
    return "p95" if "p95" in figure else figure.partition(",")[0]


def changes(base: Played, found: Played) -> Iterator[Change]:
    """Every figure of every scenario that both have."""
    for where, seeds in base.items():
        for figure in seeds[0]:
            pairs = [(a[figure], b[figure]) for a, b in zip(seeds, found[where], strict=True)]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if known:
                yield _change(where, figure, known)


def _change(where: str, figure: str, pairs: Sequence[tuple[float, float]]) -> Change:
    with_it, without = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    sign = -1.0 if kind(figure) in ("goodput", "on_time") else 1.0
    worse = sign * (without - with_it)
    if kind(figure) == "p95":
        worse = worse / with_it if with_it and abs(worse) >= MIN_S else 0.0
    return Change(where, figure, with_it, without, worse, len(pairs) > 1 and all(sign * (b - a) > 0 for a, b in pairs))
