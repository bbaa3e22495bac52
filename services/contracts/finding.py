"""Router -> `weir doctor`: what one check of a deployment found, as a JSON list on standard output."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["ok", "skip", "warn", "fail"]


class ProductionFinding(msgspec.Struct, frozen=True):
    """`fail`: to be mended before a fleet. `why` it matters and the `remedy` belong to warn and fail only."""

    check: str
    severity: Severity
    seen: str
    why: str = ""
    remedy: str = ""
