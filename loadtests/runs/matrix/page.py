"""The page docs/results/matrix.md, made from the series alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from loadtests.report.figure import Figure, held
from loadtests.report.page import head, parts_table, picture, table
from loadtests.runs.matrix import promised, readme, sections, targets
from loadtests.runs.matrix.cases import Case
from loadtests.runs.matrix.cell import Series
from loadtests.runs.matrix.losses import losses
from loadtests.runs.matrix.sections import percent, wrapped
from loadtests.runs.matrix.subjects import SUBJECTS, Subject

NAME = "matrix"
HEAD = """\
{head}
{summary}

{stack}

{subjects}

Every other gateway runs with [its configuration](../../loadtests/runs/matrix/configs), which names its sources.
Versions: {versions}.

The client is an open loop: arrivals do not wait for answers, and latency counts from the intended send time. Every
subject gets the same bytes at the same times: a chat completion with its tenant's key and its deadline, for those that
read them. Loads are multiples of the capacity, which a closed loop with one client for each slot measures at the
workers themselves before each scenario. Unless stated otherwise, clients disconnect a quarter of a second after their
deadline. Arrivals in the first and the last three seconds do not count. Each scenario and its targets are
[a file](../../loadtests/scenarios).

{pictures}
"""


READ_ON = (
    "The targets are below ([on processes](#targets), [in the simulator](#promises-in-the-simulator)), and so is "
    "[where Weir loses](#where-weir-loses). Two frontends, measured alone: [another page](two-frontends.md). How to "
    "interpret such figures: [load testing](../load-testing.md)."
)
BESIDE = "This scenario is beside [the matrix](matrix.md), and measured alone."
SPEAK = "They speak the router's protocol and OpenAI's, and refuse requests beyond what they hold."
OWN = f"Simulated workers, usually two of 8 slots and 80 ms with 10 % jitter. {SPEAK}"
GIVEN = "A stack that was already running: {}. In lab mode it may cut any answer."
WAYS = "The subjects before these workers:"
QUICK = "**A quick series: it tests the machinery, and its figures mean nothing.** "


def summary(series: Series, cases: Mapping[str, Case]) -> str:
    faults = [
        f"{cell.scenario} ({cell.subject}): {cell.fault.splitlines()[0]}"
        for cell in series.cells.values()
        if cell.fault
    ]
    promises = {**targets.promises(series, cases), **promised.figures(series)}
    lines = [held(chain.from_iterable(promises.values()))]
    for title, figures in promises.items():
        lines.append(f"\n{title}")
        for figure in figures:
            verdict = figure.verdict.strip("*")
            lines.append(f"  {verdict:<7}{figure.name:<62} {figure.shown:>18}  {figure.wanted} {figure.note}".rstrip())
    return "\n".join([*lines, *(f"could not be played: {fault}" for fault in faults)])


def page(series: Series, cases: Mapping[str, Case], pictures: Sequence[tuple[str, str]]) -> str:
    """The whole page. `pictures`: names of files beside it, and their descriptions."""
    promises = targets.promises(series, cases)
    everything = {**promises, **promised.figures(series)}
    judged = held(chain.from_iterable(everything.values()))
    shown = [picture(name, shows) for name, shows in pictures]
    command = "make matrix" + (' ARGS="--quick"' if series.quick else "")
    parts = [
        HEAD.format(
            head=head("Weir and others: the matrix", command=command, machine=series.machines),
            summary=wrapped(f"{QUICK if series.quick else ''}{judged} {READ_ON}"),
            stack=wrapped(f"{GIVEN.format(series.given) if series.given else OWN} {WAYS}"),
            subjects=_subjects(series),
            versions=series.versions or "no other gateway is installed",
            pictures="\n\n".join(shown),
        ),
        "## In short\n",
        readme.table(series),
        *_targets(promises),
        *_losing(series, cases),
        *sections.scenarios(series, cases),
        *promised.section(series),
        *_believing(series),
    ]
    return "\n".join(parts).rstrip() + "\n"


def own(series: Series, case: Case) -> str:
    """The page of one scenario, with the commit and the day of its own run."""
    series, cases = series.of(case.name), {case.name: case}
    promises = targets.promises(series, cases)
    parts = [
        HEAD.format(
            head=head(case.title, command=f'make matrix ARGS="{case.name} --own"', machine=series.machines),
            summary=wrapped(f"{_held(promises)} {BESIDE}"),
            stack=wrapped(f"Simulated workers: {case.shape}. {SPEAK} {WAYS}"),
            subjects=_subjects(series),
            versions=series.versions,
            pictures="",
        ).rstrip(),
        "",
        *sections.scenarios(series, cases),
        *_targets(promises),
        *_losing(series, cases),
        *_believing(series),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _held(promises: Mapping[str, Sequence[Figure]]) -> str:
    return held(figure for figures in promises.values() for figure in figures)


def _played(series: Series) -> list[Subject]:
    played = {cell.subject for cell in series.cells.values()}
    return [subject for subject in SUBJECTS if subject.name in played]


def _subjects(series: Series) -> str:
    return "\n".join(wrapped(f"- **{each.title}**: {each.about}.", "  ") for each in _played(series))


def _targets(promises: Mapping[str, Sequence[Figure]]) -> Iterator[str]:
    yield "## Targets\n"
    yield "Targets of Weir with its default settings, from each scenario's file.\n"
    yield from parts_table(promises, part="Scenario")
    yield ""
    yield wrapped(
        "That no request is lost, doubled or mixed up while processes are killed, and that memory stays flat, is "
        "tested by other commands with their own pages: `make integrity`, `make soak`."
    )
    yield ""


def _losing(series: Series, cases: Mapping[str, Case]) -> Iterator[str]:
    yield "## Where Weir loses\n"
    found = losses(series, cases)
    if not found:
        yield "In no figure of this run was another subject better by more than noise.\n"
        return
    yield wrapped(
        "Every figure of this run in which another subject was better by more than noise, without selection. The last "
        "column is the other's goodput in the same load: a gateway that answers almost nothing is easily fast."
    )
    yield ""
    columns = ("scenario", "figure", "Weir:", "better", ":", "its goodput:")
    rows, previous = [], ""
    for loss in found:
        name = loss.scenario if loss.scenario != previous else ""
        previous = loss.scenario
        rows.append((name, loss.what, loss.ours, loss.subject, loss.theirs, f"{loss.their_goodput:.2f}"))
    yield from table(columns, rows)
    yield ""
    yield WHY


WHY = """\
Three reasons are by design:

- **Weir shares work, not requests.** If small and big requests compete, each tenant gets its share of the tokens. That
  is fewer answers than serving the small ones first.
- **Weir rejects on a prediction.** A request that would have been answered in time by luck is rejected with the others.
  Near the capacity, and in short bursts, a plain queue answers some of them.
- **Weir does more for each request than a proxy**, in a slower language. It costs processor time and a little latency
  even without overload.

A queue whose limit or timeout is tuned to the service time and to one common deadline, as HAProxy's is here, holds the
goodput as well. It needs new tuning when either changes, rejects after the wait instead of before it, and cannot
protect a tenant or a deadline that differs from the others.
"""


def _believing(series: Series) -> Iterator[str]:
    played = [cell for cell in series.cells.values() if not cell.fault]
    if not played:
        return
    late, others = max(cell.client_late for cell in played), max(cell.others for cell in played)
    yield "## How reliable the figures are\n"
    yield wrapped(
        f"Client, gateway and workers share the machine. In the worst of these runs the client sent {percent(late)} "
        f"of its requests over 20 ms late, and unrelated programs used {percent(others)} of the machine. "
        f"A run in which the client was late for more than 5 % is played once more, and marked † if it still was: "
        f"{sum(not cell.believable for cell in played)} of {len(played)} are. Each scenario lasts "
        "seconds and was played once, so differences of a few per cent are not significant."
    )
