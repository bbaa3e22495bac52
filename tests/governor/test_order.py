"""Who leaves a governor leaves in the order in which it came, at every start."""

from __future__ import annotations

from typing import Any

from services.governor.server import GovernorServer, ServerLimits
from tests.virtual import run

MANY = 200  # so that an order by address would hardly ever be this one


class Nothing:
    draining = False

    async def close(self) -> None:
        pass


class Connected:
    def __init__(self, number: int, deferred: list[tuple[str, int]]) -> None:
        self.number = number
        self.deferred = deferred

    def drain(self) -> None:
        self.deferred.append(("drain", self.number))

    def abort(self) -> None:
        self.deferred.append(("abort", self.number))


def test_a_governor_that_closes_tells_its_connections_in_the_order_in_which_they_came() -> None:
    deferred: list[tuple[str, int]] = []

    async def main() -> None:
        nothing: Any = Nothing()
        server = GovernorServer(nothing, nothing, limits=ServerLimits(), metrics=nothing, log=nothing)
        for number in range(MANY):
            server.connections.add(Connected(number, deferred))  # type: ignore[arg-type]
        await server.close(0.0)

    run(main())
    assert deferred == [(what, number) for what in ("drain", "abort") for number in range(MANY)]
