"""Shares in calm: each tenant that asks for more than its share gets its weight's part, and a light one is on time.

The fair parts are max-min by weight over what was served in the stretch: a tenant below its share gets what it asks,
and the others divide the rest. What is counted are starts at workers, in requests: all have equal cost.

A queue owes nothing to a tenant that has nothing in it, and one that asks for more than its share may be without a
waiting request for moments: arrivals come in clusters, and admission rejects what it predicts to be late. So the error
is judged twice: of all tenants, and among those with a request waiting all the time, which is the scheduler's own part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import NamedTuple

from loadtests.judging.answers import Verdict
from loadtests.report.figure import Figure, at_least, at_most
from loadtests.runs.many.ends import within
from loadtests.runs.many.record import Entry, Observed, Phase, Stretch
from loadtests.runs.many.sizes import DEADLINE_S
from loadtests.runs.many.steps import waiting_at_once
from loadtests.runs.many.tenants import LIGHT

MAX_ERROR = 0.05
LIGHT_ON_TIME = 0.99
ALL_THE_TIME = 0.98
"""A tenant with a request waiting for this part of a stretch waits all the time."""


class Share(NamedTuple):
    """One tenant in one stretch, in requests. `error`: how far it is from its fair part, as a share of that."""

    tenant: str
    asked: int
    got: int
    fair: float

    @property
    def is_above(self) -> bool:
        """Whether it asked for more than its share."""
        return self.asked > self.fair

    @property
    def error(self) -> float:
        return abs(self.got / self.fair - 1) if self.fair else nan


def max_min(total: float, asked: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Divide `total` by weight; who asks for less than its part gets what it asks, and the others share the rest."""
    fair, left, open_ = dict[str, float](), total, dict(weights)
    while open_:
        per_weight = left / sum(open_.values())
        below = [name for name, weight in open_.items() if asked.get(name, 0.0) <= per_weight * weight]
        if not below:
            return fair | {name: per_weight * weight for name, weight in open_.items()}
        for name in below:
            fair[name] = asked.get(name, 0.0)
            left -= fair[name]
            del open_[name]
    return fair


def shares_in(stretch: Stretch, observed: Observed, weights: Mapping[str, float]) -> list[Share]:
    asked = Counter(entry.tenant for entry in observed.entries if within(entry, stretch))
    got = Counter(
        job.tenant
        for job in observed.jobs
        if job.started_s is not None and stretch.from_s <= job.started_s < stretch.to_s
    )
    fair = max_min(got.total(), asked, weights)
    return [Share(name, asked[name], got[name], fair[name]) for name in weights]


def shares_of_waiting(stretch: Stretch, observed: Observed, weights: Mapping[str, float]) -> list[Share]:
    """Of the tenants that had a request waiting all the time: what they got together, divided by weight."""
    some = [share for share in shares_in(stretch, observed, weights) if _waits(share.tenant, stretch, observed)]
    per_weight = sum(share.got for share in some) / max(1.0, sum(weights[share.tenant] for share in some))
    return [share._replace(fair=per_weight * weights[share.tenant]) for share in some]


def _waits(tenant: str, stretch: Stretch, observed: Observed) -> bool:
    entries = [entry for entry in observed.entries if entry.tenant == tenant]
    waiting = waiting_at_once(entries, [job for job in observed.jobs if job.tenant == tenant])
    seconds = sum(seconds for count, seconds in waiting.pieces(stretch.from_s, stretch.to_s) if count > 0)
    return seconds >= ALL_THE_TIME * (stretch.to_s - stretch.from_s)


def light_of(observed: Observed) -> Sequence[Entry]:
    """The requests of the light tenant that were sent in calm."""
    calm = observed.phases(Phase.CALM)
    return [
        entry for entry in observed.entries if entry.tenant == LIGHT and any(within(entry, stretch) for stretch in calm)
    ]


def figures(observed: Observed, weights: Mapping[str, float], *, judged: bool) -> Iterator[Figure]:
    """`judged`: the stretches are long enough for targets."""
    stretches = list(enumerate(observed.phases(Phase.CALM), 1))
    errors = [
        _error(share, number)
        for number, stretch in stretches
        for share in shares_in(stretch, observed, weights)
        if share.is_above
    ]
    worst, note = max(errors, default=(nan, ""))
    name = "error of a share in a calm stretch, the largest"
    yield at_most(name, worst, MAX_ERROR, "%", note) if judged else Figure(name, worst, "%", note=note)
    mean = sum(error for error, _ in errors) / len(errors) if errors else nan
    yield Figure("error of a share in a calm stretch, the mean", mean, "%")
    waiting = [
        _error(share, number)
        for number, stretch in stretches
        for share in shares_of_waiting(stretch, observed, weights)
    ]
    of_waiting, which = max(waiting, default=(nan, ""))
    name = "error of a share among tenants that waited all the time, the largest"
    yield at_most(name, of_waiting, MAX_ERROR, "%", which) if judged else Figure(name, of_waiting, "%", note=which)
    light = light_of(observed)
    on_time = sum(map(is_on_time, light))
    part = on_time / len(light) if light else nan
    name, note = "light tenant on time in calm", f"{on_time} of {len(light)}"
    yield at_least(name, part, LIGHT_ON_TIME, "%", note) if judged else Figure(name, part, "%", note=note)


def is_on_time(entry: Entry) -> bool:
    return entry.verdict is Verdict.RIGHT and entry.ended_s - entry.sent_s <= DEADLINE_S


def late_of(observed: Observed) -> Iterator[str]:
    """How each request of the light tenant in calm ended that was not answered on time."""
    for number, stretch in enumerate(observed.phases(Phase.CALM), 1):
        for entry in light_of(observed):
            if within(entry, stretch) and not is_on_time(entry):
                lines = observed.logged(entry)
                logged = ", ".join(f"{line.outcome} after {line.seconds:.2f} s" for line in lines)
                yield (
                    f"{entry.id} at {entry.router}, {entry.sent_s - stretch.from_s:.1f} s after the start of calm "
                    f"{number}: {entry.verdict}, status {entry.status} {entry.code}, after "
                    f"{entry.ended_s - entry.sent_s:.2f} s; logged: {logged or 'nothing'}"
                )


def _error(share: Share, number: int) -> tuple[float, str]:
    return share.error, f"{share.tenant} in calm {number}: {share.got} of {share.fair:.1f}"
