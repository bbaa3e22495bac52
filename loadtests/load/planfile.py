"""A plan from TOML or JSON. Unknown keys are errors.

Two keys of a tenant make several tenants of it: `clients` a population, `trace` the clients of a recording.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from loadtests.load.plan import Plan, Step, Tenant
from loadtests.load.population import population
from loadtests.load.recorded import NO_ROWS, Recording, tenants_of
from loadtests.scenarios.distributions import Distribution
from loadtests.scenarios.model import Retries
from loadtests.scenarios.validation import messages_of

BY_THE_TRACE = ("per_s", "steps", "arrivals", "cv", "prompt_tokens", "answer_tokens", "clients", "skew")


def load(path: Path, trace: Path | None = None) -> Plan:
    """Read a plan. `trace` replaces every recording in it. Raises ValueError with the reason."""
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")), folder=path.parent, trace=trace)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse(raw: Mapping[str, Any], *, folder: Path = Path(), trace: Path | None = None) -> Plan:
    """Make a plan of parsed TOML or JSON. Recordings are looked up in the working directory and in `folder`."""
    if trace is not None and not any("trace" in tenant for tenant in raw.get("tenants", ())):
        raise ValueError("no tenant of this plan replays a trace")
    plan = _made(
        Plan, {**raw, "tenants": (Tenant("a", (Step(0, 0),)),)}
    )  # the plan's own keys are validated before a file is read
    tenants = tuple(tenant for each in raw.get("tenants", ()) for tenant in _tenants(each, plan.seconds, folder, trace))
    return _made(Plan, {**raw, "tenants": tenants})


def _tenants(raw: Mapping[str, Any], seconds: float, folder: Path, trace: Path | None) -> Iterator[Tenant]:
    try:
        if "trace" in raw:
            yield from _recorded(raw, seconds, folder, trace)
        else:
            yield from _drawn(raw)
    except ValueError as error:
        raise ValueError(f"tenant {raw.get('name', '?')}: {error}") from None


def _drawn(raw: Mapping[str, Any]) -> Iterator[Tenant]:
    values = _values(raw, ("per_s", "clients", "skew"))
    if "per_s" in raw:
        values["steps"] = (Step(0, raw["per_s"]),)
    tenant = _made(Tenant, values)
    if "clients" not in raw and "skew" not in raw:
        yield tenant
        return
    yield from population(tenant, raw.get("clients", 1), raw.get("skew", 0.0))


def _recorded(raw: Mapping[str, Any], seconds: float, folder: Path, trace: Path | None) -> Iterator[Tenant]:
    if given := sorted(set(BY_THE_TRACE) & set(raw)):
        raise ValueError(f"{', '.join(given)}: this comes from the trace")
    tenant = _made(Tenant, _values(raw, ("trace",)), arrivals="recorded", recorded=NO_ROWS)
    yield from tenants_of(tenant, _recording(raw["trace"], folder, trace), seconds)


def _recording(raw: Mapping[str, Any], folder: Path, trace: Path | None) -> Recording:
    given = {**raw} if trace is None else {**raw, "path": trace, "format": None}
    if "path" not in given:
        raise ValueError("trace: a path is missing; --trace gives one, too")
    found: Recording = _validated(_RECORDING, "trace", given, folder)
    return found


def _values(raw: Mapping[str, Any], apart: tuple[str, ...]) -> dict[str, Any]:
    """A tenant's keys except those in `apart`, converted for the plan."""
    values = {name: value for name, value in raw.items() if name not in apart}
    if "steps" in values:
        values["steps"] = tuple(_made(Step, step) for step in values["steps"])
    return values | {name: _validated(kind, name, values[name]) for name, kind in _SHARED.items() if name in values}


def _validated(kind: TypeAdapter[Any], name: str, raw: Any, folder: Path | None = None) -> Any:
    """Validate a value written as in a scenario."""
    try:
        return kind.validate_python(raw, context={"folder": folder})
    except ValidationError as error:
        raise ValueError("; ".join(f"{name}: {fault}" for fault in messages_of(raw, error))) from None


_RECORDING: TypeAdapter[Any] = TypeAdapter(Recording)
_SIZES: TypeAdapter[Any] = TypeAdapter(Distribution)
_SHARED: dict[str, TypeAdapter[Any]] = {
    "prompt_tokens": _SIZES,
    "answer_tokens": _SIZES,
    "retries": TypeAdapter(Retries),
}

Made = TypeVar("Made", Plan, Tenant, Step)


def _made(kind: type[Made], raw: Mapping[str, Any], **ours: Any) -> Made:
    """Make an object of a table of the file and of `ours`."""
    known = {field.name for field in fields(kind)} - {"recorded"}
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"{', '.join(unknown)}: unknown here; known are {', '.join(sorted(known))}")
    try:
        return kind(**raw, **ours)
    except TypeError as error:
        raise ValueError(str(error).replace("__init__()", kind.__name__.lower())) from None
