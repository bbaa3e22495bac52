"""The page's make-believe router speaks as the real one does: what is built against it holds."""

from __future__ import annotations

from typing import Any

import msgspec

from services.contracts.console import Frame, Hello, RequestLife
from tests.console.pictures import HELLO, frame, life, sharing
from tests.console.world import World


def whole(value: Any) -> Any:
    """With times of day as whole milliseconds."""
    if isinstance(value, dict):
        return {name: round(each) if name == "at_ms" else whole(each) for name, each in value.items()}
    return [whole(each) for each in value] if isinstance(value, list) else value


def names(value: Any, path: str = "") -> set[str]:
    """Every name in it, with the way to it."""
    if isinstance(value, dict):
        return {f"{path}.{name}" for name in value} | set().union(*(names(v, f"{path}.{n}") for n, v in value.items()))
    return set().union(*(names(each, path) for each in value)) if isinstance(value, list) else set()


def spoken(value: Any, as_type: type) -> None:
    """It reads as this type, and says nothing that this type does not."""
    read = msgspec.convert(whole(value), as_type)
    unknown = names(value) - names(msgspec.to_builtins(read))
    assert not unknown


def test_its_frames_lives_and_greeting_are_those_of_the_contract() -> None:
    world = World()
    for _ in range(400):
        world.step(0.05)
    world.policy["admission"] = False
    spoken(HELLO, Hello)
    spoken(frame(world, 1.8e12), Frame)
    spoken(frame(world, 1.8e12) | {"sharing": sharing()}, Frame)
    assert world.lives
    for asked in world.lives.values():
        spoken(life(world, asked), RequestLife)
