"""The statistical refinements of the core, and what stands in the place of each while the bench `ablation` plays.

A variant changes settings, or replaces methods and constants of the core for as long as it plays. The product has no
switch for it. A simpler rule that is honest stands in the place of a refinement: a mean, a plain quantile, a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

from services.core import calibration, estimator, prefill
from services.core.admissioncheck import AdmissionCheck
from services.core.calibration import WaitCalibration
from services.core.cost import Lengths
from services.core.estimator import Estimator
from services.core.quantile import Sketch
from services.core.scheduler import FIRST_QUANTUM_TOKENS
from services.core.stats import Waits

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, slots=True)
class Refinement:
    """`instead`: the rule in its place. `patches`: object, attribute, and the value while it plays."""

    name: str
    instead: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    patches: tuple[Patch, ...] = ()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Play without it."""
        before = [(where, name, getattr(where, name)) for where, name, _ in self.patches]
        try:
            for where, name, value in self.patches:
                setattr(where, name, value)
            yield
        finally:
            for where, name, value in before:
                setattr(where, name, value)


def _never_fading(made: Callable[..., None]) -> Callable[..., None]:
    def init(self: Sketch, alpha: float = 0.01, **given: Any) -> None:
        made(self, alpha, **{**given, "half_life": inf})

    return init


_observe = Lengths.observe


def _own_errors(self: WaitCalibration) -> WaitCalibration | None:
    return self if self.errors_s is not calibration.NO_ERRORS else None


def _nothing(*_: Any) -> None:
    return None


def _mean_gap(self: Estimator, now: float) -> float:
    return 0.0 if self.busy < self.slots or not self.rate else self.mean_cost / self.rate


REFINEMENTS = (
    Refinement("probes after 16 refusals", "none", patches=((AdmissionCheck, "_is_probe", lambda self: False),)),
    Refinement(
        "the relative prefill error",
        "the line itself",
        patches=((Estimator, "prefill_s", lambda self, n, q=None: self.prefill_model.seconds(n, self.unread_tokens)),),
    ),
    Refinement("two kinds of waits", "one window for both", patches=((Waits, "of", lambda self, new: self.in_turn),)),
    Refinement(
        "the next free slot, by expected ends", "the mean gap", patches=((Estimator, "next_slot_s", _mean_gap),)
    ),
    Refinement("a quantum that follows costs", "1000 tokens", {"quantum_tokens": FIRST_QUANTUM_TOKENS}),
    Refinement(
        "adaptive conformal levels", "fixed levels (split conformal)", patches=((WaitCalibration, "_adapt", _nothing),)
    ),
    Refinement(
        "the class answers for a tenant's waits",
        "no correction before 20 own waits",
        patches=((WaitCalibration, "answering", property(_own_errors)),),
    ),
    Refinement(
        "cut answers as censored samples (Kaplan-Meier)",
        "cut answers count as ended",
        patches=((Lengths, "observe", lambda self, n, *, cut=False: _observe(self, n, cut=cut and n <= 0)),),
    ),
    Refinement(
        "the model's lengths for a new tenant",
        "half of the limit",
        patches=((Lengths, "_source", lambda self: self if self.confident else None),),
    ),
    Refinement("room left by tenants above their share", "none", patches=((AdmissionCheck, "leave_room", _nothing),)),
    Refinement("unread prompts count (congested pools)", "a free slot is idle", {"unread_prompts_delay": False}),
    Refinement("measured rounds", "the share formula alone", {"measured_rounds": False}),
    Refinement(
        "samples fade",
        "all samples weigh the same",
        patches=(
            (Sketch, "__init__", _never_fading(Sketch.__init__)),
            (estimator, "_FADE", 1.0),
            (prefill, "FADE", 1.0),
        ),
    ),
    Refinement("control of standing queues (CoDel)", "none", {"standing_queue": False}),
)
