"""What a long run says while it runs."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Say it now, into a pipe as well."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def why(error: BaseException) -> str:
    """The first cause, by its kind."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
