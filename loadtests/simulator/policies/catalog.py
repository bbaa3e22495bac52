"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from loadtests.scenarios.model import PolicyChoice, PolicyName, Scenario
from loadtests.simulator.policies import weir
from loadtests.simulator.policies.fifo import Fifo
from loadtests.simulator.policies.round_robin import RoundRobin
from loadtests.simulator.policies.vtc import Vtc
from loadtests.simulator.policy import Policy
from services.cli.errors import LabError
from services.core.cost import Weights
from services.core.estimator import Estimator

QUEUE_SIZE = 200

Make = Callable[..., Policy]


def build(
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    seed: int,
    weights: Weights,
    announced: Estimator,
    tenant_weights: Mapping[str, float],
) -> Policy:
    """The policy with its settings. Raises LabError for a wrong setting."""
    if choice.policy == "weir":
        random = Random(f"{seed}/weir").random
        return weir.build(scenario, {**scenario.weir, **choice.settings}, weights, announced, random)
    makes: Mapping[PolicyName, tuple[Make, dict[str, Any]]] = {
        "fifo": (Fifo, {}),
        "bounded_fifo": (Fifo, {"queue_size": QUEUE_SIZE}),
        "fifo_ttl": (Fifo, {"drops_expired": True}),
        "round_robin_ttl": (RoundRobin, {}),
        "round_robin_ttl_cancel": (RoundRobin, {"cancels": True}),
        "vtc": (
            Vtc,
            {
                "weights": tenant_weights,
                "prompt_weight": weights.prompt,
                "completion_weight": weights.completion,
            },
        ),
    }
    make, arguments = makes[choice.policy]
    try:
        return make(**{**arguments, **choice.settings})
    except (TypeError, ValueError) as error:
        raise LabError(f"A setting of the policy {choice.name} is wrong: {error}.") from None
