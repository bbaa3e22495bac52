"""A request that starts at once leaves all state as if it had been queued and then started."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from random import Random
from types import FunctionType, MethodType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.account import ClassSpec, QueueBounds, TenantSpec
from services.core.policies import Policies
from services.core.request import Request, Stage
from tests.core.house import ROOMY, House, settings

QUEUE_ONLY = {"_expiries", "expires_at"}
"""The expiries: a request that was never queued has none."""
TENANTS = ("light", "usual", "heavy")


def state(value: Any, seen: dict[int, int]) -> Any:
    """All state that can be reached from an object, by value."""
    if value is None or isinstance(value, str | int | float | Enum | type | FunctionType | MethodType | Random):
        return value if isinstance(value, str | int | float) else str(type(value))
    if id(value) in seen:
        return f"object {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, Mapping):
        return [(state(key, seen), state(each, seen)) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset) or hasattr(value, "popleft"):
        return [state(each, seen) for each in value]
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names += list(getattr(value, "__dict__", ()))
    return type(value).__name__, {
        name: state(getattr(value, name), seen) for name in names if hasattr(value, name) and name not in QUEUE_ONLY
    }


def house(*, queues_all: bool, slots: int) -> House:
    chosen = settings(classes=(ClassSpec("default"), ClassSpec("gold", 4.0)), bounds=QueueBounds(6, 4000.0))
    made = House(slots, chosen=chosen, queues_all=queues_all)
    for name, weight, class_name in (("light", 1.0, "default"), ("usual", 1.0, "gold"), ("heavy", 0.5, "default")):
        made.scheduler.configure(TenantSpec(name, QueueBounds(4, 3000.0), weight, class_name))
    return made


def play(made: House, seed: int) -> list[Any]:
    """Some seconds of light load with bursts, changes of policy and of slots; what happened, request by request."""
    random = Random(seed)
    for _ in range(random.randint(5, 60)):
        tenant = random.choice((*TENANTS, "unknown"))
        for _ in range(random.choice((1, 1, 1, 1, 4))):
            made.offer(
                tenant,
                slack_s=random.choice((0.01, 0.3, 1.0, 5.0)),
                answer=random.choice((1, 20, 200)),
                prompt_tokens=random.choice((1, 50, 3000)),
                class_name=random.choice(("", "", "default")),
                may_clamp=random.random() < 0.3,
                start_by=made.now + random.choice((0.0, 0.5, 1000.0)),
                max_level=random.choice((0, 4)),
            )
        if random.random() < 0.05:
            made.scheduler.switch(made.now, Policies(random.random() < 0.7, random.random() < 0.7, True))
        made.run(made.now + random.choice((0.0, 0.01, 0.1, 0.3, 3.0)))
    return [
        (request.id, request.stage, request.level, request.granted_tokens, request.predicted_wait_s, request.started_at)
        for request in made.answers
    ]


@given(seed=st.integers(0, 2**32), slots=st.integers(1, 4))
def test_a_request_that_starts_at_once_changes_what_one_does_that_is_queued_and_started(seed: int, slots: int) -> None:
    at_once, queued = house(queues_all=False, slots=slots), house(queues_all=True, slots=slots)
    assert play(at_once, seed) == play(queued, seed)
    assert state(at_once.scheduler, {}) == state(queued.scheduler, {})


def started(made: House, request: Request) -> bool:
    """Whether admission itself starts the request."""
    made.scheduler.admit(made.now, request, lambda each: True)
    return request.stage is Stage.RUNNING


def test_a_request_that_is_alone_before_a_free_slot_is_not_queued() -> None:
    made = House(1)
    assert started(made, made.request())


@pytest.mark.parametrize("ready", [True, False])
def test_no_request_starts_at_once_while_another_is_queued(ready: bool) -> None:
    made = House(2)
    made.scheduler.admit(made.now, made.request(ready=ready))
    assert not started(made, made.request())


def test_a_request_whose_retrieval_runs_does_not_start_at_once() -> None:
    made = House(1)
    assert not started(made, made.request(ready=False))


def test_a_request_that_does_not_fit_is_queued() -> None:
    made = House(1)
    request = made.request()
    made.scheduler.admit(made.now, request, lambda each: False)
    assert request.stage is Stage.WAITING


def test_a_request_above_a_bound_is_rejected_also_before_a_free_slot() -> None:
    made = House(1, chosen=settings(bounds=QueueBounds(5, cost_tokens=10.0), unconfigured=TenantSpec("", ROOMY)))
    request = made.request()
    assert made.scheduler.admit(made.now, request, lambda each: True).reason == "platform_cost"  # type: ignore[union-attr]
    assert request.stage is Stage.NEW
    assert request.expires_at == 0.0


def test_only_a_request_that_is_queued_gets_an_expiry() -> None:
    made = House(2)
    at_once, queued = made.request(), made.request()
    assert started(made, at_once)
    made.scheduler.admit(made.now, queued, lambda each: False)
    assert at_once.expires_at == 0.0 < queued.expires_at


def test_a_tenant_in_debt_that_is_alone_gets_the_rounds_that_pay_it_and_starts_at_once() -> None:
    made = House(2, chosen=settings(quantum_tokens=10.0))
    assert started(made, made.request("a", slack_s=100.0))
    assert started(made, made.request("a", slack_s=100.0))
    (pool,) = made.scheduler.pools.values()
    (node,) = pool.pool.nodes.values()
    assert node.flows.given > 0.0


def test_a_tenant_whose_class_is_in_debt_is_queued() -> None:
    made = House(2, chosen=settings(quantum_tokens=10.0, classes=(ClassSpec("default"), ClassSpec("gold", 4.0))))
    assert started(made, made.request("a", slack_s=100.0))
    second = made.request("a", slack_s=100.0)
    assert not started(made, second)
    assert second.stage is Stage.WAITING


def test_in_order_of_arrival_a_tenant_in_debt_is_queued_since_there_are_no_rounds_to_pay_in() -> None:
    made = House(2, chosen=settings(quantum_tokens=10.0))
    made.scheduler.switch(made.now, Policies(admission=True, fairness=False, cancellation=True))
    assert started(made, made.request("a", slack_s=100.0))
    assert not started(made, made.request("a", slack_s=100.0))
