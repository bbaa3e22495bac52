"""The page docs/results/locust.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtests.report.figure import Figure, at_most, number, summary
from loadtests.report.machine import together
from loadtests.report.page import head, picture, table
from loadtests.runs.people.kept import Played
from loadtests.runs.people.watching import figures

STEM = "locust"
COLUMNS = (
    "Scenario", "Users:", "RPS:", "p50:", "p95:", "p99:", "Failure rate:", "Refused:", "Cut:",
    "Waiting, mean / most:", "Refusals/s, most:", "Cut answers/s, most:", "Level, highest:",
)  # fmt: skip
HOW_TO_READ = """\
Users wait for their answer, think and ask again, so they ask less when the service slows: these are figures of those
who asked, and say nothing of those who would have come meanwhile ([how not to be
fooled](../../loadtests/README.md#how-to-read-the-result)). Users: the most at any time. RPS: requests a second, by
whatever end. Percentiles, in ms, are of answers alone. A failure is anything but an answer in time, an honest refusal,
a user's own patience, and what a worker that the scenario slowed could not finish; its target is none. Refused and cut
are shares of all requests: an answer that was cut says so.

The columns from *Waiting* on are the router's own word of the same minutes: requests in line, refusals at the door and
answers with something cut, and the highest degradation level.
"""


def judged(played: Sequence[Played]) -> list[Figure]:
    """What has a target: nobody's request may fail."""
    return [at_most(f"{each.scenario}: failure rate", _share(each.failed, each), 0.0, "%") for each in played]


def page(played: Sequence[Played], *, command: str, drawn: bool) -> str:
    """All of it, in Markdown. `drawn`: the picture lies beside it."""
    return "\n".join(_lines(played, command, drawn)) + "\n"


def _lines(played: Sequence[Played], command: str, drawn: bool) -> Iterator[str]:
    yield head("People", command=command, machine=together(each.machine for each in played))
    yield summary(judged(played)).replace(" A figure without a target is for the record.", "")
    yield ""
    yield from table(COLUMNS, map(row, played))
    yield f"\n{HOW_TO_READ}"
    if drawn:
        told = "Queue depth, refusals a second and cut answers a second over the time of each scenario."
        yield picture(STEM, told)
        yield ""
    yield "## The questions\n"
    yield from table(("Scenario", "What it asks"), ((f"`{each.scenario}`", each.asks) for each in played))


def row(played: Played) -> tuple[str, ...]:
    """One scenario, by `COLUMNS`."""
    told = figures(list(played.samples))

    def said(*names: str) -> str:
        return " / ".join(number(told[name]) if name in told else "-" for name in names)

    failed = f"{_share(played.failed, played):.2%}".replace("%", " %")
    return (
        f"`{played.scenario}`",
        f"{played.users:,}",
        number(played.requests / played.seconds if played.seconds else 0.0),
        *("-" if each is None else f"{each:,}" for each in (played.p50_ms, played.p95_ms, played.p99_ms)),
        f"**{failed}**" if played.failed else failed,
        f"{_share(played.refused, played):.1%}".replace("%", " %"),
        f"{_share(played.degraded, played):.1%}".replace("%", " %"),
        said("waiting_mean", "waiting_most"),
        said("refused_most_per_s"),
        said("degraded_most_per_s"),
        f"{told['level_most']:.0f}" if told else "-",
    )


def _share(count: int, played: Played) -> float:
    return count / played.requests if played.requests else float("nan")
