"""Whether a client that was not served asks again, and when."""

from __future__ import annotations

from collections.abc import Callable

from loadtests.load.plan import Retry

WAITS = {"never": "none", "immediate": "immediate", "hint": "obey"}
"""What a scenario's file says that clients wait for, and how the open loop plays it."""
OBEYED_UP_TO_S = 10.0  # a client who is told to come back later than this goes away instead


def retry_of(attempts: int, wait: str) -> Retry:
    """As a scenario's file has it. Raises KeyError for a wait that the open loop does not play."""
    mode = WAITS[wait]
    return Retry(mode, attempts) if attempts else Retry("none", 0)


def pause_s(retry: Retry, tried: int, *, refused: bool, should_retry: bool, hint_ms: float | None) -> float | None:
    """Seconds until the next try after `tried` of them; None when there is none."""
    if tried > retry.most:
        return None
    return _PAUSES[retry.mode](refused, should_retry, hint_ms)


def _never(refused: bool, should_retry: bool, hint_ms: float | None) -> float | None:
    return None


def _at_once(refused: bool, should_retry: bool, hint_ms: float | None) -> float | None:
    """Whatever happened and whatever was said: the client of every retry storm."""
    return 0.0


def _as_told(refused: bool, should_retry: bool, hint_ms: float | None) -> float | None:
    """After the hint, and only where a retry was invited."""
    if not refused or not should_retry or hint_ms is None:
        return None
    return hint_ms / 1000 if hint_ms <= OBEYED_UP_TO_S * 1000 else None


_PAUSES: dict[str, Callable[[bool, bool, float | None], float | None]] = {
    "none": _never,
    "immediate": _at_once,
    "obey": _as_told,
}
