"""A scenario as one stage plays it: the file, with what the file says is different there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtests.scenarios.changes import Changes, changed
from loadtests.scenarios.model import Scenario, StageName, find, load_raw, parse
from services.cli.errors import LabError


def on_stage(path_or_name: str | Path, stage: StageName, changes: Changes | None = None) -> Scenario:
    """The scenario for that stage; `changes` of the command line come last. Raises LabError, also where the file says
    that this stage cannot play it."""
    path = find(path_or_name)
    raw = for_stage(load_raw(path), stage, path.stem)
    return parse(changed(raw, changes or Changes()), name=path.name, folder=path.parent)


def reason_against(raw: Any, stage: StageName) -> str:
    """Why that stage cannot play what YAML gave, as the file says; empty where it can."""
    variant = _variant(raw, stage)
    return str(variant.get("without") or "")


def for_stage(raw: Any, stage: StageName, name: str) -> Any:
    """What YAML gave, with the stage's own changes made. Raises LabError."""
    variant = _variant(raw, stage)
    if reason := reason_against(raw, stage):
        raise LabError(f"{name} is not played by {stage}: {reason}")
    sets = variant.get("sets", ())
    if not isinstance(sets, list) or not all(isinstance(each, str) for each in sets):
        return raw  # reading the file says so
    return changed(raw, Changes(sets=tuple(sets))) if sets else raw


def _variant(raw: Any, stage: StageName) -> dict[str, Any]:
    variants = raw.get("stages") if isinstance(raw, dict) else None
    variant = variants.get(stage) if isinstance(variants, dict) else None
    return variant if isinstance(variant, dict) else {}
