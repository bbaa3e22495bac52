"""One load through one gateway: what was found, as the page and the state file have it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtests.report.figure import Figure

NOTHING = math.nan  # a time of answers or refusals of which there were none


@dataclass(frozen=True)
class Cell:
    """`doubtful`: the client itself was late, so the machine was measured. `on`: with what, where and when."""

    case: str
    gateway: str
    figures: Sequence[Figure] = ()
    doubtful: bool = False
    fault: str = ""
    on: str = ""
    runs: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def key(self) -> tuple[str, str]:
        return self.case, self.gateway

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which knows no NaN."""
        return {
            "case": self.case,
            "gateway": self.gateway,
            "figures": [_told(figure.as_dict()) for figure in self.figures],
            "doubtful": self.doubtful,
            "fault": self.fault,
            "on": self.on,
            "runs": list(self.runs),
        }


def cell(raw: Mapping[str, Any]) -> Cell:
    """Back from JSON. Raises KeyError or TypeError for something else."""
    return Cell(**{**raw, "figures": [_figure(each) for each in raw["figures"]]})


def _told(figure: dict[str, Any]) -> dict[str, Any]:
    return {**figure, "value": None if math.isnan(figure["value"]) else figure["value"]}


def _figure(raw: Mapping[str, Any]) -> Figure:
    value = NOTHING if raw["value"] is None else raw["value"]
    return Figure(**{**{name: each for name, each in raw.items() if name != "held"}, "value": value})
