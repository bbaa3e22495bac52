"""Models for tests: the installed one with some of its small files changed, its weights linked and not copied."""

from __future__ import annotations

import json
from pathlib import Path

CLS: dict[str, object] = {"1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}}
"""What makes another model of the same weights: the vector of the first token, not the mean."""


def variant(model: Path, folder: Path, changes: dict[str, object], *, without: tuple[str, ...] = ()) -> Path:
    """The model in a folder of its own; `changes` are merged into its JSON files, or written where there is none."""
    for source in model.rglob("*"):
        name = source.relative_to(model).as_posix()
        if not source.is_file() or name in without:
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in changes:
            continue
        target.symlink_to(source)
    for name, change in changes.items():
        old = json.loads((model / name).read_text(encoding="utf-8")) if (model / name).is_file() else {}
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({**old, **change} if isinstance(change, dict) else change), encoding="utf-8")
    return folder
