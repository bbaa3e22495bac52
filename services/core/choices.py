"""The settings of the scheduler core, validated when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.cost import Weights
from services.core.ladder import LADDER, LadderLevel
from services.core.policies import Policies


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """All settings of the core. Each mechanism can be switched off, to measure its effect.

    `policies` are the coarse switches, which can change while requests run (`Scheduler.switch`). Raises ValueError for
    a margin outside (0, 1], a quantum that is not above 0, or unconfigured tenants of an unknown class.
    """

    bounds: QueueBounds = field(default_factory=lambda: QueueBounds(256))
    unconfigured: TenantSpec = field(default_factory=lambda: TenantSpec("", QueueBounds(64)))
    """Template for tenants that are not configured; they keep their own id."""
    classes: tuple[ClassSpec, ...] = field(default_factory=lambda: (ClassSpec("default"),))
    idle_tenants: int = 10_000
    quantum_tokens: float | None = None
    """None: the q90 of request costs."""
    safety_margin: float = 0.8
    weights: Weights = field(default_factory=Weights)
    ladder: tuple[LadderLevel, ...] = LADDER
    min_answer_tokens: int = 1
    """An answer that may be cut starts only if at least this many tokens fit."""
    degrade: bool = True
    clamp: bool = True
    standing_queue: bool = True
    feasibility: bool = True
    calibrate: bool = True
    true_up: bool = True
    measured_rounds: bool = True
    unread_prompts_delay: bool = True
    """Whether tokens that workers have still to prefill count at admission."""
    policies: Policies = field(default_factory=Policies)
    several_routers: bool = False
    """Whether other routers use the same workers: a tenant is then judged by its load on the whole pool."""
    strict: bool = False
    """Whether a second `finish` of a request raises (tests, simulations) or is counted (production)."""

    def __post_init__(self) -> None:
        if not 0 < self.safety_margin <= 1:
            raise ValueError(f"safety_margin must be above 0 and at most 1, got {self.safety_margin}")
        if self.quantum_tokens is not None and not self.quantum_tokens > 0:
            raise ValueError(f"quantum_tokens must be above 0, got {self.quantum_tokens}")
        names = {spec.name for spec in self.classes}
        if (name := self.unconfigured.class_name) not in names:
            raise ValueError(f"unconfigured tenants are of class {name}, which is none of {sorted(names)}")
