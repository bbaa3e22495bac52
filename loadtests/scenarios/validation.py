"""The faults of a scenario file, as lines with the place: `tenants[0].arrivals.cv: must be greater than 0`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

if TYPE_CHECKING:
    from loadtests.scenarios.model import Scenario


def contradictions(scenario: Scenario) -> list[str]:
    """Contradictions between valid parts."""
    return [
        *_window(scenario), *_windows(scenario), *_repeated(scenario), *_unknown(scenario), *_routers(scenario)
    ]  # fmt: skip


def messages_of(raw: Any, error: ValidationError) -> tuple[str, ...]:
    """One line per fault, in the order of the model."""
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
    """Pydantic's path includes the chosen kind; the place contains only what is in the file."""
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


def _window(scenario: Scenario) -> list[str]:
    if scenario.warm_up_s + scenario.cool_down_s < scenario.duration_s:
        return []
    return [f"warm_up_s and cool_down_s leave nothing of duration_s ({scenario.duration_s:g})"]


def _windows(scenario: Scenario) -> list[str]:
    known = {window.name for window in scenario.windows}
    wrong = [
        f"windows: {window.name} ends after the run, which has {scenario.duration_s:g} s"
        for window in scenario.windows
        if window.until_s > scenario.duration_s
    ]
    return wrong + [
        f"must: there is no window {must.window}"
        for must in scenario.must
        if must.window is not None and must.window not in known
    ]


def _repeated(scenario: Scenario) -> list[str]:
    kinds = {
        "windows": [window.name for window in scenario.windows],
        "tenants": [group.name for group in scenario.tenants],
        "classes": [each.name for each in scenario.classes],
        "policies": [choice.name for choice in scenario.policies],
    }
    return [
        f"{kind}: {name} is there twice"
        for kind, names in kinds.items()
        for name in sorted(set(names))
        if names.count(name) > 1
    ]


def _routers(scenario: Scenario) -> list[str]:
    count = 1 if scenario.routers is None else scenario.routers.count
    return [
        f"tenants: {group.name} asks router {max(group.routers)}, and the last is {count - 1}"
        for group in scenario.tenants
        if group.routers and max(group.routers) >= count
    ]


def _unknown(scenario: Scenario) -> list[str]:
    classes = {each.name for each in scenario.classes}
    names = {group.name for group in scenario.tenants}
    faults = [
        f"tenants: {group.name} is of class {group.tenant_class}, which is not under classes"
        for group in scenario.tenants
        if group.tenant_class not in classes
    ]
    swept = scenario.sweep.tenants if scenario.sweep else ()
    of = {"sweep.tenants": swept, "alone": scenario.alone, "must": tuple(must.of for must in scenario.must if must.of)}
    return faults + [
        f"{where}: there is no tenant {name}" for where, wanted in of.items() for name in wanted if name not in names
    ]
