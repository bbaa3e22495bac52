"""The faults of a scenario file, as lines that name the place: `tenants[0].arrivals.cv: must be greater than 0`."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError


def tell(raw: Any, error: ValidationError) -> tuple[str, ...]:
    """One line a fault, in the order of the file's model."""
    faults = [(_place(raw, each["loc"]), str(each["msg"]), each["type"]) for each in error.errors()]
    return tuple(
        _line(place, message)
        for place, message, kind in faults
        if not (kind == "too_short" and any(other.startswith(f"{place}[") for other, _, _ in faults))
    )


def _line(place: str, message: str) -> str:
    message = message.removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _place(raw: Any, parts: tuple[int | str, ...]) -> str:
    """Pydantic's path also names the kind it chose; only what stands in the file counts."""
    place, node, last = "", raw, len(parts) - 1
    kind = _kind(node)
    for position, part in enumerate(parts):
        if part == kind:
            kind = None
            continue
        inside = _child(node, part)
        if inside is None and position != last:
            continue
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
        node, kind = inside, _kind(inside)
    return place


def _kind(node: Any) -> Any:
    return node.get("kind") if isinstance(node, dict) else None


def _child(node: Any, part: int | str) -> Any:
    if isinstance(node, dict):
        return node.get(part)
    return node[part] if isinstance(node, list) and isinstance(part, int) and part < len(node) else None
