"""The table of promises: in the terminal, as docs/results/proof.md, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from loadtests.report.figure import held
from loadtests.report.page import head
from loadtests.simulator.proof.cases import CASES, OTHERS
from loadtests.simulator.proof.line import Outcome, Row

Proof = Mapping[Row, Sequence[Outcome]]

SHORT = ("fifo", "bounded", "ttl", "rr ttl", "rr ttl c", "vtc")
STYLES = {None: "", True: "green", False: "bold red"}


ABOUT = """\
where it differs; the worst seed decides. A figure without a target is for the record. Rows 1 to 7, 9 and 11 come from
a simulation on a virtual clock: they repeat exactly, and they show what the design reaches under the assumptions of
[the simulator](../simulator.md), no more. Row 8 is measured in real time."""
ABOUT_CASES = """\
Arrivals from second 3 to 3 s before the end count. Loads are multiples of the capacity that is measured in the same
run. Each case can be looked at alone:"""


def table(row: Row, outcomes: Sequence[Outcome], *, others: bool = True) -> Table:
    """One row of the proof, a line each of its figures. A narrow terminal has no room for the others."""
    title = Text(f"{row.number}  {row.title}", style="bold")
    shown = Table(box=None, pad_edge=False, header_style="dim", title=title, title_justify="left")
    shown.add_column("figure", min_width=30)
    for name in ("weir", "worst", "target"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for name in SHORT if others else ():
        shown.add_column(name, justify="right", style="dim", no_wrap=True)
    for outcome in outcomes:
        line = outcome.line
        verdict = Text(outcome.verdict, style=STYLES[outcome.held])
        ours = _first(outcome), worst(outcome, line.judged)
        rest = [median(outcome, name) for name in OTHERS] if others else []
        shown.add_row(line.name, *ours, line.wanted, verdict, *rest)
    return shown


def median(outcome: Outcome, policy: str) -> str:
    value = outcome.median(policy)
    return "–" if value is None else outcome.line.unit.write(value)


def worst(outcome: Outcome, policy: str) -> str:
    value = outcome.worst(policy)
    return "–" if value is None else outcome.line.unit.write(value)


def verdict(proof: Proof) -> str:
    """How many targets held, of how many."""
    return held(outcome for outcomes in proof.values() for outcome in outcomes)


def markdown(proof: Proof, command: str, machine: str, seeds: int) -> str:
    """The whole page."""
    return "\n".join(
        [
            head("Proof", command=command, machine=machine),
            f"{verdict(proof)} Figures are medians over {seeds} seeds, with the worst seed in brackets",
            ABOUT,
            "",
            *(text for row, outcomes in proof.items() for text in _section(row, outcomes)),
            "## The cases",
            "",
            ABOUT_CASES,
            "",
            *_cases(proof),
            "",
        ]
    )


def _section(row: Row, outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f"## {row.number}. {row.title}"
    yield ""
    yield row.how
    yield ""
    yield f"| figure | weir | target | | {' | '.join(OTHERS)} |"
    yield f"|---|---:|---:|---|{'---:|' * len(OTHERS)}"
    for outcome in outcomes:
        line = outcome.line
        verdict = f"**{outcome.verdict}**" if outcome.held is False else outcome.verdict
        others = " | ".join(_cell(outcome, name) for name in OTHERS)
        yield f"| {line.name} | {_ours(outcome)} | {line.wanted} | {verdict} | {others} |"
    yield ""


def _first(outcome: Outcome) -> str:
    """The median; of repetitions of which one decides, that one."""
    if outcome.judged_by is None or outcome.figure is None:
        return median(outcome, outcome.line.judged)
    return outcome.line.unit.write(outcome.figure)


def _ours(outcome: Outcome) -> str:
    if outcome.judged_by is None:
        return _cell(outcome, outcome.line.judged)
    others = f"median {median(outcome, outcome.line.judged)}, worst {worst(outcome, outcome.line.judged)}"
    return f"{_first(outcome)} ({others})"


def _cell(outcome: Outcome, policy: str) -> str:
    middle, far = median(outcome, policy), worst(outcome, policy)
    return middle if middle == far else f"{middle} ({far})"


def _cases(proof: Proof) -> Iterator[str]:
    yield "| case | command |"
    yield "|---|---|"
    for name in dict.fromkeys(name for row in proof for name in row.cases):
        if name in CASES:
            case = CASES[name]
            without = f" (without {', '.join(case.without)})" if case.without else ""
            yield f"| {name} | `{case.command}`{without} |"


def plain(proof: Proof, command: str, machine: str, seeds: Sequence[int]) -> dict[str, Any]:
    """For JSON: every figure of every policy and seed."""
    return {
        "command": command,
        "machine": machine,
        "seeds": list(seeds),
        "rows": [
            {"number": row.number, "title": row.title, "how": row.how, "lines": [_plain(each) for each in outcomes]}
            for row, outcomes in proof.items()
        ],
    }


def _plain(outcome: Outcome) -> dict[str, Any]:
    line = outcome.line
    return {
        "name": line.name,
        "cases": list(line.cases),
        "unit": line.unit.name,
        "target": line.target,
        "at_least": line.at_least,
        "judged": line.judged,
        "figure": outcome.figure,
        "held": outcome.held,
        "values": {policy: list(values) for policy, values in outcome.values.items()},
    }
