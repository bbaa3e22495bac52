"""The eight tenants: weights 4 and 1, one that asks for little and one that asks for everything, and their ingress.

All but the light one ask for more than their share, so each should get its weight's part of what the light one leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.cluster.stand import key_of

LIGHT = "light"
FIRST_ROUTER_PART = 0.7
"""Of the ingress; the other routers get equal parts of the rest."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A tenant: its weight, and its part of all requests."""

    name: str
    weight: float
    part: float


ASKERS = (
    Asker("gold", 4, 0.30),
    *(Asker(f"tin-{number}", 1, 0.07) for number in range(5)),
    Asker(LIGHT, 1, 0.015),
    Asker("hog", 1, 0.335),
)
WEIGHTS = {asker.name: asker.weight for asker in ASKERS}


def ingress(routers: int) -> tuple[float, ...]:
    """Each router's part of the requests."""
    if routers == 1:
        return (1.0,)
    return (FIRST_ROUTER_PART, *((1 - FIRST_ROUTER_PART) / (routers - 1) for _ in range(routers - 1)))


def tenants_file() -> str:
    """The tenants file of every router."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "tenants:"
    for asker in ASKERS:
        digest = hashlib.sha256(key_of(asker.name).encode("ascii")).hexdigest()
        yield f'  - {{id: {asker.name}, weight: {asker.weight:g}, keys: ["sha256:{digest}"]}}'
