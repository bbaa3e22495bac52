"""Changes that the command line makes to a scenario's raw YAML before validation, so that errors are reported alike."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from services.cli.errors import LabError

NAMED_BY = ("name", "label", "policy", "kind")


@dataclass(frozen=True, slots=True)
class Changes:
    """The options of the command line; empty ones change nothing."""

    policies: tuple[str, ...] = ()
    loads: tuple[float, ...] = ()
    seeds: int | None = None
    duration_s: float | None = None
    trace: Path | None = None
    sets: tuple[str, ...] = ()
    """`path.to.key=value` with a YAML value; list members by number or name."""


def changed(raw: Any, changes: Changes) -> Any:
    """A changed copy of a scenario's raw form. Raises LabError for an unknown path."""
    if not isinstance(raw, dict):
        return raw  # no scenario: validation reports it
    made = copy.deepcopy(raw)
    for assignment in changes.sets:
        _set(made, assignment)
    if changes.policies:
        made["policies"] = [_chosen(made, name) for name in changes.policies]
    if changes.loads:
        made["sweep"] = {**_mapping(made.get("sweep")), "loads": sorted(set(changes.loads))}
    if changes.seeds is not None:
        made["seeds"] = _seeds(made, changes.seeds)
    if changes.duration_s is not None:
        _shorten(made, changes.duration_s)
    for arrivals in traces(made):
        if changes.trace is not None:
            arrivals["path"] = str(changes.trace)
            arrivals.pop("format", None)  # recognized by its columns
    return made


def traces(raw: Any) -> Iterator[dict[str, Any]]:
    """The arrivals that replay a file."""
    for group in _members(_mapping(raw).get("tenants")):
        arrivals = _mapping(_mapping(group).get("arrivals"))
        if arrivals.get("kind") == "trace":
            yield arrivals


def missing_trace(raw: Any, folder: Path) -> str | None:
    """The first trace whose file is missing."""
    for arrivals in traces(raw):
        path = Path(str(arrivals.get("path", "")))
        if not path.is_file() and not (folder / path).is_file():
            return str(path)
    return None


def _chosen(raw: dict[str, Any], name: str) -> Any:
    """The file's policy with that name and its settings; else the name itself."""
    for choice in _members(raw.get("policies")):
        if isinstance(choice, dict) and name == (choice.get("label") or choice.get("policy")):
            return choice
    return name


def _seeds(raw: dict[str, Any], count: int) -> list[int]:
    first = raw.get("seed", 1)
    return [first + i for i in range(count)] if isinstance(first, int) else []


def _shorten(raw: dict[str, Any], duration_s: float) -> None:
    """Warm-up and cool-down take at most a sixth of the time each."""
    raw["duration_s"] = duration_s
    for part in ("warm_up_s", "cool_down_s"):
        given = raw.get(part, 3.0)
        if isinstance(given, int | float):
            raw[part] = min(given, duration_s / 6)
    _drop_windows(raw, duration_s)


def _drop_windows(raw: dict[str, Any], duration_s: float) -> None:
    """Drop windows that end after the run, and their targets."""
    for window in [each for each in _members(raw.get("windows")) if _ends_after(each, duration_s)]:
        raw["windows"].remove(window)
        raw["must"] = [each for each in _members(raw.get("must")) if _mapping(each).get("window") != window.get("name")]


def _ends_after(window: Any, duration_s: float) -> bool:
    until_s = _mapping(window).get("until_s")
    return isinstance(until_s, int | float) and until_s > duration_s


def _set(raw: dict[str, Any], assignment: str) -> None:
    path, equals, written = assignment.partition("=")
    if not equals or not path:
        raise LabError(f"--set {assignment}: write it as path.to.key=value.")
    put(raw, path, _value(written, assignment), f"--set {assignment}")


def put(raw: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set the value at `path` in place. Raises LabError with `where` as its beginning."""
    *way, last = path.split(".")
    node: Any = raw
    for part in way:
        node = _step(node, part, where)
    if isinstance(node, list):
        node[_index(node, last, where)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise LabError(f"{where}: there is nothing below {way[-1]}.")


def _value(written: str, assignment: str) -> Any:
    try:
        return yaml.safe_load(written)
    except yaml.YAMLError:
        raise LabError(f"--set {assignment}: the value is not YAML.") from None


def _step(node: Any, part: str, where: str) -> Any:
    if isinstance(node, dict):
        return node.setdefault(part, {})
    if isinstance(node, list):
        return node[_index(node, part, where)]
    raise LabError(f"{where}: nothing can stand above {part}.")


def _index(node: list[Any], part: str, where: str) -> int:
    if part.isdecimal() and int(part) < len(node):
        return int(part)
    for index, member in enumerate(node):
        if any(_mapping(member).get(key) == part for key in NAMED_BY) or member == part:
            return index
    raise LabError(f"{where}: there is no {part}; {_choice(node)}.")


def _choice(node: Sequence[Any]) -> str:
    names = [
        next((str(_mapping(each)[key]) for key in NAMED_BY if key in _mapping(each)), str(index))
        for index, each in enumerate(node)
    ]
    return f"choose {' or '.join(names)}" if names else "the list is empty"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _members(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
