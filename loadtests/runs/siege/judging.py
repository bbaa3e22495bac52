"""The measurements beside each kind of attacker, their targets, and the page. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from loadtests.load.figures import Share
from loadtests.report.figure import Figure, at_most, held
from loadtests.report.page import table
from loadtests.report.result import Result
from loadtests.runs.siege.attackers import OPEN_WITHIN_S, REOPENS_PER_S, Counts
from loadtests.runs.siege.attacks import BY_NAME, Attack

UNDISTURBED = "undisturbed"
POOLED, NEWCOMER = "honest", "honest-newcomer"  # as tenants; in figures they are "pooled" and "new"
CLIENTS = {POOLED: "pooled", NEWCOMER: "new"}
MAX_GROWTH_MB = 150.0
MAX_RATIO = 1.5
MAX_LATE = 0.05

PAGE = """\
Real processes on loopback: {shape} (capacity {per_s:.0f} answers/s), one router with its default settings and a
tenants file, and an open-loop client that asks for {load:.0%} of the capacity with a deadline of {deadline_ms:g} ms.
{newcomers:.0%} of its requests open a connection each (*new*); the others share at most {connections} connections that
were open before the attack (*pooled*). Each row lasts {seconds:g} s and has a router of its own. The attackers of a row
come from 8 addresses (`idle_spread`: 254), and all have connected after {within:g} s. When the router closes one of
their connections they open another, {reopens:g} a second in all."""
MEANING = """\
- *Memory*: how far the router's resident memory (sampled four times a second) rose above the median of the second half
  of the undisturbed row, {baseline:.0f} MB.
- *Success*: the share of the requests due during the attack that were answered completely with 200 within the deadline.
  Latency counts from the moment at which a request was due. *p99 /*: relative to the undisturbed row.
- *Opened* are all connections of the attackers, and *connected* the highest number at one time.
- *Refused* attackers got 429 or 503 or could not connect; all other connections that ended were *cut off*.
- *Late*: requests that the honest client itself sent over 20 ms late. Above {late:.0%} the row measured the machine.
  The router has a core of its own if there are two or more; all other processes share the others.
- New connections have no target in `idle_spread`: the attack takes every connection of the listener."""


@dataclass
class Clients:
    on_time: float
    p50_ms: float
    p99_ms: float
    endings: dict[str, int]


def clients_of(share: Share) -> Clients:
    return Clients(share.on_time, share.answers_ms.p50, share.answers_ms.p99, share.endings)


@dataclass
class Row:
    """The measurements beside one attack, or `undisturbed`. Memory and descriptors are the router's.

    `late`: the share of counted requests that the client sent late. `fault`: why the row could not be played.
    """

    name: str = UNDISTURBED
    per_s: float = 0.0
    clients: dict[str, Clients] = field(default_factory=dict)
    memory_mb: list[float] = field(default_factory=list)
    descriptors: int = 0
    counts: Counts = field(default_factory=Counts)
    router_cpu: float = 0.0
    late: float = 0.0
    fault: str = ""

    @property
    def attack(self) -> Attack | None:
        return BY_NAME.get(self.name)

    @property
    def about(self) -> str:
        return f"{self.attack.count:,} {self.attack.about}" if self.attack else "the honest tenant alone"


def judge(rows: Sequence[Row]) -> dict[str, list[Figure]]:
    """The figures by row; the first row is the undisturbed one. A row that could not be played has none."""
    calm = rows[0]
    return {row.name: list(_figures(row, calm)) if row.clients and calm.clients else [] for row in rows}


def baseline_mb(calm: Row) -> float:
    """The median memory of the second half of the undisturbed row; 0 without samples."""
    return median(calm.memory_mb[len(calm.memory_mb) // 2 :]) if calm.memory_mb else 0.0


def _figures(row: Row, calm: Row) -> Iterator[Figure]:
    growth = max(row.memory_mb, default=0.0) - baseline_mb(calm)
    yield at_most("memory", growth, MAX_GROWTH_MB, "MB")
    for tenant, kind in CLIENTS.items():
        judged = not (row.attack and row.attack.exhausts and tenant == NEWCOMER)
        yield from _client(kind, row.clients[tenant], calm.clients[tenant], judged)
    yield Figure("connected", row.counts.max_connected, note=f"of {row.counts.wanted:,}")
    yield Figure("opened", row.counts.opened, note=f"{row.counts.sent_bytes:,} bytes sent")
    yield Figure("cut off", row.counts.cut)
    yield Figure("refused", row.counts.refused)
    yield Figure("descriptors", row.descriptors)
    yield Figure("router's core", row.router_cpu, "%")
    yield at_most("late", row.late, MAX_LATE, "%")


def _client(kind: str, found: Clients, calm: Clients, judged: bool) -> Iterator[Figure]:
    others = ", ".join(f"{count:,} {ending}" for ending, count in found.endings.items())
    ratio = found.p99_ms / calm.p99_ms if calm.p99_ms else 0.0
    yield Figure(f"{kind}: success", found.on_time, "%", 1.0 if judged else None, note=others)
    yield Figure(f"{kind}: p50", found.p50_ms, "ms")
    yield Figure(f"{kind}: p99", found.p99_ms, "ms")
    yield Figure(f"{kind}: p99 /", ratio, "", MAX_RATIO if judged else None, at_least=False)


def result(rows: Sequence[Row], **facts: object) -> Result:
    """The page and its figures. `facts`: further values of the page's template."""
    found = judge(rows)
    faults = [f"{row.name} could not be played: {row.fault}" for row in rows if row.fault]
    unplayed = at_most("rows that could not be played", len(faults), 0, note="; ".join(faults).replace("\n", " "))
    parts = {**found, "all rows": [Figure("capacity", rows[0].per_s, "answers/s"), unplayed]}
    reasons = "".join(f" {fault.splitlines()[0]}." for fault in faults)
    calm = rows[0]
    page = PAGE.format(per_s=calm.per_s, within=OPEN_WITHIN_S, reopens=REOPENS_PER_S, **facts)
    meaning = MEANING.format(baseline=baseline_mb(calm), late=MAX_LATE)
    verdict = f"**{held(figure for some in found.values() for figure in some)}{reasons}**"
    blocks = [verdict, page, _table(found), meaning, "## The rows", map(_about, rows)]
    return Result("Siege: an honest tenant beside a thousand attacking clients", parts, blocks)


def _table(found: dict[str, list[Figure]]) -> Iterator[str]:
    first = next(iter(found.values()))
    lines = [
        (each.name, *(_cell(some[number]) if some else "" for some in found.values()), each.wanted)
        for number, each in enumerate(first)
    ]
    return table(("", *(f"{name}:" for name in found), "Target:"), lines)


def _cell(figure: Figure) -> str:
    return f"**{figure.shown}**" if figure.held is False else figure.shown


def _about(row: Row) -> str:
    limited = f" (here {row.counts.wanted:,})" if row.attack and row.counts.wanted < row.attack.count else ""
    return f"- `{row.name}`: {row.about}{limited}."
