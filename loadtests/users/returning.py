"""Whether a user asks a question once more, and after how long. Arithmetic, without Locust."""

from __future__ import annotations

import random

from loadtests.scenarios.model import Retries
from loadtests.users.verdict import Kind, Verdict

PATIENCE_S = 10.0
"""A user who is told to come back later than this goes away instead."""


def again_in(retries: Retries, verdict: Verdict, tries: int, chance: random.Random) -> float | None:
    """Seconds until a question that was put so many times is put once more; None: it is not."""
    if verdict.kind is Kind.SERVED or tries > retries.attempts:
        return None
    match retries.wait:
        case "immediate":
            return 0.0
        case "backoff":
            return chance.uniform(0.0, min(retries.at_most_s, retries.base_s * 2.0 ** (tries - 1)))
        case "hint":
            return verdict.hint_s if verdict.retry and verdict.hint_s <= PATIENCE_S else None
        case _:
            return None
