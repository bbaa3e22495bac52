"""Output of long runs on the terminal."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write a line and flush, so that a pipe receives it at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def why(error: BaseException) -> str:
    """The first cause as `TYPE: message`; exception groups are unwrapped."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
