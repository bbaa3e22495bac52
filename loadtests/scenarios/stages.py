"""A scenario for one stage: the file with the stage's own changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from loadtests.scenarios.changes import Changes, changed, put
from loadtests.scenarios.distributions import Model
from loadtests.scenarios.model import Scenario, StageName, find, load_raw, parse
from services.cli.errors import LabError

MOMENTS = frozenset({"from_s", "until_s", "duration_s", "warm_up_s", "cool_down_s", "on_s", "off_s"})
M = TypeVar("M", bound=Model)


def on_stage(path_or_name: str | Path, stage: StageName, changes: Changes | None = None) -> Scenario:
    """The scenario for that stage, with `changes` of the command line last. Raises LabError, also if the file excludes
    the stage.
    """
    path = find(path_or_name)
    raw = for_stage(load_raw(path), stage, path.stem)
    return parse(changed(raw, changes or Changes()), name=path.name, folder=path.parent)


def retimed(part: M, at: Callable[[float], float]) -> M:
    """The same with every moment moved by `at`: phases, failures, windows and the duration."""

    def moved(name: str, value: Any) -> Any:
        if name in MOMENTS:
            return at(value)
        if isinstance(value, Model):
            return retimed(value, at)
        return tuple(moved("", each) for each in value) if isinstance(value, tuple) else value

    return part.model_copy(update={name: moved(name, value) for name, value in part})


def reason_against(raw: Any, stage: StageName) -> str:
    """The file's reason why that stage cannot play it; empty if it can."""
    variant = _variant(raw, stage)
    return str(variant.get("without") or "")


def unjudged(raw: Any) -> Any:
    """The raw form without other stages' targets and sweep: tenants of this stage have other names."""
    return {**raw, "alone": [], "must": [], "sweep": None} if isinstance(raw, dict) else raw


def for_stage(raw: Any, stage: StageName, name: str) -> Any:
    """The raw form with the stage's own changes. Raises LabError."""
    variant = _variant(raw, stage)
    if reason := reason_against(raw, stage):
        raise LabError(f"{name} is not played by {stage}: {reason}")
    instead = variant.get("instead", {})
    if not isinstance(instead, dict) or not all(isinstance(each, str) for each in instead):
        return raw  # validation reports it
    made = copy.deepcopy(raw)
    for path, value in instead.items():
        put(made, path, copy.deepcopy(value), f"{path} of stages.{stage}.instead")
    return made


def _variant(raw: Any, stage: StageName) -> dict[str, Any]:
    variants = raw.get("stages") if isinstance(raw, dict) else None
    variant = variants.get(stage) if isinstance(variants, dict) else None
    return variant if isinstance(variant, dict) else {}
