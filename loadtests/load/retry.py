"""Whether and when a client retries, for the open loop and Locust's users."""

from __future__ import annotations

from random import Random

from loadtests.scenarios.model import Retries

OBEYED_UP_TO_S = 10.0
"""A client does not retry if the hint is longer."""


def pause_s(
    retries: Retries, tried: int, *, refused: bool, should_retry: bool, hint_ms: float | None, chance: Random,
    impatient: bool = False,
) -> float | None:  # fmt: skip
    """Seconds until the next try after `tried` tries; None for no retry.

    A hint is obeyed only if the refusal invites a retry. The other policies, and impatient clients, ignore the answer.
    """
    if tried > retries.attempts:
        return None
    if impatient:
        return 0.0
    match retries.wait:
        case "immediate":
            return 0.0
        case "backoff":
            return chance.uniform(0.0, min(retries.at_most_s, retries.base_s * 2.0 ** (tried - 1)))
        case "hint":
            invited = refused and should_retry and hint_ms is not None and hint_ms <= OBEYED_UP_TO_S * 1000
            return hint_ms / 1000 if invited and hint_ms is not None else None
        case _:
            return None
