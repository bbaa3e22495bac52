"""Whether the whole stack can stand on this machine."""

from __future__ import annotations

from services.cli import postgres, valkey
from services.retrieval.minilm import ModelUnusable, find_model


def no_stack() -> str:
    """What keeps the stack from standing here; empty if nothing does."""
    if postgres.programs() is None or valkey.program() is None:
        return "no embedded PostgreSQL or Valkey for this platform"
    try:
        find_model()
    except ModelUnusable as error:
        return str(error)
    return ""
