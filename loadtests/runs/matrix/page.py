"""The page docs/results/REPORT.md, from the series and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadtests.report.page import picture
from loadtests.runs.matrix import readme, sections, targets
from loadtests.runs.matrix.cell import Series
from loadtests.runs.matrix.losses import losses
from loadtests.runs.matrix.policies import POLICIES, Policy
from loadtests.runs.matrix.sections import percent, wrapped

HEAD = """\
# The whole series

Written by `{command}`, on {machines}.{version}

{summary}

{stack}

{policies}

The client is an open loop: arrivals do not wait for answers, and latency counts from the moment at which a request
should have been sent. Every policy meets the same arrivals. Loads are multiples of the capacity, which a closed loop
with one client for each slot finds at the workers themselves before each scenario. Clients name a deadline, 1 s where
nothing else is said, and leave a quarter of a second after it. What arrives in the first and the last three seconds
does not count. HAProxy is told no deadline and no tenant, since it has no use for them.

{pictures}
"""


READ_ON = (
    "Each is [below](#targets), and so is [where Weir loses](#where-weir-loses). How to read such figures, and how not "
    "to be fooled by them: [load testing](../load-testing.md)."
)
EMBEDDED = (
    "The embedded stack, as `make up` starts it: database, cache, retrieval, governor, router, and two simulated "
    "workers of 8 slots and 80 ms, with 10 % jitter."
)
GIVEN = "A stack that ran already: {}. Where it is in lab mode, it may cut any answer."
WAYS = "Who stands before these workers:"
QUICK = "**A quick series: it tests the machinery, and its figures mean nothing.** "


def summary(series: Series) -> str:
    """For the terminal."""
    faults = [
        f"{cell.scenario} ({cell.policy}): {cell.fault.splitlines()[0]}" for cell in series.cells.values() if cell.fault
    ]
    lines = [targets.summary(series)]
    for promise in targets.promises(series):
        lines.append(f"\n{promise.name}")
        for figure in promise.figures:
            verdict = figure.verdict.strip("*")
            lines.append(f"  {verdict:<7}{figure.name:<62} {figure.shown:>18}  {figure.wanted} {figure.note}".rstrip())
    return "\n".join([*lines, *(f"could not be played: {fault}" for fault in faults)])


def page(series: Series, pictures: Sequence[tuple[str, str]]) -> str:
    """The whole page; pictures are names beside it, and what they show."""
    shown = {name: picture(name, shows) for name, shows in pictures}
    parts = [
        HEAD.format(
            command="make report" + (' ARGS="--quick"' if series.quick else ""),
            machines=series.machines,
            version=f" {series.version}." if series.version else " HAProxy is not installed there, and left out.",
            summary=wrapped(f"{QUICK if series.quick else ''}{targets.summary(series)} {READ_ON}"),
            stack=wrapped(f"{GIVEN.format(series.given) if series.given else EMBEDDED} {WAYS}"),
            policies="\n".join(wrapped(f"- **{each.title}**: {each.about}.", "  ") for each in _policies(series)),
            pictures="\n\n".join(shown.values()),
        ),
        *_short(series),
        *_targets(series),
        *_losing(series),
        *sections.scenarios(series),
        *_believing(series),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _policies(series: Series) -> list[Policy]:
    played = {cell.policy for cell in series.cells.values()}
    return [policy for policy in POLICIES if policy.name in played]


def _short(series: Series) -> Iterator[str]:
    yield "## In short\n"
    yield readme.table(series)


def _targets(series: Series) -> Iterator[str]:
    yield "## Targets\n"
    yield "Of Weir with its default settings. The worst is of all scenarios in which no worker is hurt on purpose.\n"
    yield "| promise | figure | measured | target | | |"
    yield "|---|---|---:|---:|---|---|"
    for promise in targets.promises(series):
        for index, figure in enumerate(promise.figures):
            name = promise.name if index == 0 else ""
            yield f"| {name} | {figure.name} | {figure.shown} | {figure.wanted} | {figure.verdict} | {figure.note} |"
    yield ""
    yield wrapped(
        "That nothing is lost, doubled or mixed up while parts are killed, and that memory stays flat, has commands "
        "and pages of its own: `make integrity`, `make soak`."
    )
    yield ""


def _losing(series: Series) -> Iterator[str]:
    yield "## Where Weir loses\n"
    found = losses(series)
    if not found:
        yield "In no figure of this run another policy was better by more than noise.\n"
        return
    yield wrapped(
        "Every figure of this run in which another policy was better by more than noise; none was left out, and none "
        "chosen. The last column is the other's goodput meanwhile: who answers next to nothing is easily fast."
    )
    yield ""
    yield "| scenario | figure | Weir | better | | its goodput |"
    yield "|---|---|---:|---|---:|---:|"
    previous = ""
    for loss in found:
        name = loss.scenario if loss.scenario != previous else ""
        previous = loss.scenario
        yield f"| {name} | {loss.what} | {loss.ours} | {loss.policy} | {loss.theirs} | {loss.their_goodput:.2f} |"
    yield ""
    yield WHY


WHY = """\
Three reasons are by design:

- **Weir shares work, not requests.** Where small and big requests compete it gives each tenant its share of the tokens,
  which is fewer answers than serving the small ones first would be.
- **Weir refuses on a prediction.** Who would have been answered in time by luck is refused with those who would not.
  Near the capacity, and where short bursts pass by themselves, a plain queue answers some of them.
- **Weir does more for each request than a proxy**, in a slower language. It costs processor time and a little latency
  while there is room for everybody.

A queue whose bound or timeout was tuned to the service time and to the one deadline that everybody has, as HAProxy's is
here, holds the goodput as well. It has to be tuned again when either changes, refuses after the wait and not before
it, and can promise nothing to the tenant or the deadline that is unlike the others.
"""


def _believing(series: Series) -> Iterator[str]:
    played = [cell for cell in series.cells.values() if not cell.fault]
    if not played:
        return
    late, others = max(cell.client_late for cell in played), max(cell.others for cell in played)
    yield "## How far to believe it\n"
    yield wrapped(
        f"Client, gateway and workers share the machine. In the worst of these runs the client sent {percent(late)} "
        f"of its requests over 20 ms late, and programs that are none of ours used {percent(others)} of the machine. "
        f"A run in which the client was late for more than 5 % is played once more, and marked † if it still was: "
        f"{sum(not cell.believable for cell in played)} of {len(played)} are. Each scenario lasts "
        "seconds, and was played once: differences of a few per cent say nothing."
    )
