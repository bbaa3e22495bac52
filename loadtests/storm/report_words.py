"""What the parts of a report have in common: a run's name, its policies in words, and numbers as one reads them."""

from __future__ import annotations

from collections.abc import Sequence

from services.contracts.storm import PolicyTold, Run

SWITCHES = ("admission", "fairness", "cancellation")


def policy_words(policy: PolicyTold | None) -> str:
    """The router's switches as one reads them."""
    if policy is None:
        return "not told"
    off = [name for name in SWITCHES if not getattr(policy, name)]
    return "all on" if not off else f"{', '.join(off)} off"


def name_of(run: Run, runs: Sequence[Run]) -> str:
    """A letter where there are two, and the id."""
    letter = "AB"[next(i for i, one in enumerate(runs) if one is run)] + ": " if len(runs) > 1 else ""
    return f"{letter}run {run.run}"


def under(run: Run, runs: Sequence[Run]) -> str:
    """What stands over a run's part where there are two."""
    return f"{name_of(run, runs)}, policies: {policy_words(run.policy)}" if len(runs) > 1 else ""


def percent(value: float | None) -> str:
    """A share of 1."""
    return "not told" if value is None else f"{100 * value:.1f} %"


def milliseconds(value: float | None) -> str:
    """A time, if there was one."""
    return "none" if value is None else f"{value:.0f} ms"
