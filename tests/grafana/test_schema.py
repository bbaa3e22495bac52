"""Grafana knows every field of the dashboards, and every value of a closed set.

Grafana itself is not here. Its schema is: the Foundation SDK's types are generated from it. A dashboard that is read
into them and written again has lost nothing, and every value is of the type that stands there.
"""

from __future__ import annotations

import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from tests.grafana.queries import dashboards, panels

sdk = pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk is not installed (make venv)")

from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402  # only where it is installed
from grafana_foundation_sdk.cog.plugins import register_default_plugins  # noqa: E402
from grafana_foundation_sdk.models import units  # noqa: E402
from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> None:
    """What Grafana's own panels and data sources add to the schema."""
    register_default_plugins()


def lost(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """What does not come back as it was."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from lost(value, theirs[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}: unknown"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif ours != theirs:
        yield f"{place}: {ours!r} became {theirs!r}"


def misfits(value: Any, hint: Any, place: str = "") -> Iterator[str]:
    """Values that are not of the type that the schema gives them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if all(any(True for _ in misfits(value, one, place)) for one in arguments):
            yield f"{place}: {value!r} is none of {arguments}"
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{place}: {value!r} is none of {arguments}"
    elif origin is list:
        if not isinstance(value, list):
            yield f"{place}: {value!r} is no list"
            return
        for number, one in enumerate(value):
            yield from misfits(one, arguments[0], f"{place}[{number}]")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in {member.value for member in hint}:
            yield f"{place}: {value!r} is no {hint.__name__}"
    elif hasattr(value, "to_json"):
        yield from misfits_within(value, place)
    elif hint in (str, bool, int) and not isinstance(value, hint):
        yield f"{place}: {value!r} is no {hint.__name__}"
    elif hint is float and not isinstance(value, int | float):
        yield f"{place}: {value!r} is no number"
    elif hint is type(None) and value is not None:
        yield f"{place}: {value!r} is something"


def misfits_within(thing: Any, place: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(type(thing).__init__).items():
        value = getattr(thing, name, None)
        if name != "return" and value is not None:
            yield from misfits(value, hint, f"{place}.{name}")


@pytest.mark.parametrize("name", dashboards())
def test_grafana_knows_every_field(name):
    ours = dashboards()[name]
    theirs = json.loads(JSONEncoder().encode(Dashboard.from_json(ours)))
    assert list(lost(ours, theirs)) == []


@pytest.mark.parametrize("name", dashboards())
def test_every_value_is_of_its_type(name):
    assert list(misfits_within(Dashboard.from_json(dashboards()[name]), name)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("fieldConfig", "defaults", "custom", "drawStile"), "line"),
        (("fieldConfig", "defaults", "custom", "showPoints"), "rarely"),
        (("options", "legend", "displayMode"), "below"),
        (("fieldConfig", "defaults", "thresholds", "mode"), "sometimes"),
        (("targets", 0, "expression"), "up"),
    ],
)
def test_a_slip_of_the_pen_is_found(path, value):
    """The two tests above can fail: each of these is found by one of them."""
    board = json.loads(json.dumps(dashboards()["overview.json"]))
    thing: Any = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    for step in path[:-1]:
        thing = thing[step]
    thing[path[-1]] = value
    read = Dashboard.from_json(board)
    assert [*lost(board, json.loads(JSONEncoder().encode(read))), *misfits_within(read, "")]


@pytest.mark.parametrize("unit", sorted({panel["fieldConfig"]["defaults"]["unit"] for _, panel in panels()}))
def test_grafana_knows_the_unit(unit):
    known = {value for name, value in vars(units).items() if not name.startswith("_") and isinstance(value, str)}
    assert unit in known
