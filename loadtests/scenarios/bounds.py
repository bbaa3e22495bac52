"""Checks of single values, of a plan or of a scenario."""

from __future__ import annotations


def within(what: str, value: float, minimum: float, maximum: float) -> None:
    """Raises ValueError unless the value is a number in this range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise ValueError(f"{what} is {value!r}; a number from {minimum:g} to {maximum:g} was expected")


def one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    """Raises ValueError for an unknown value."""
    if value not in known:
        raise ValueError(f"{what} is {value!r}; one of {', '.join(known)} was expected")
