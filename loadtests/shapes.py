"""How many users there are at each moment: Locust's view of a scenario's stages."""

from __future__ import annotations

from typing import ClassVar

from locust import LoadTestShape
from scenario import Scenario


class Staged(LoadTestShape):
    """Follows the stages, then ends the test."""

    abstract = True
    scenario: ClassVar[Scenario]

    def tick(self) -> tuple[int, float] | None:
        stage = self.scenario.stage_at(self.get_run_time())
        return (stage.users, stage.spawn_per_s) if stage else None


def shape_of(scenario: Scenario) -> type[Staged]:
    """A shape class for this scenario, under the scenario's name."""
    return type(scenario.name.capitalize(), (Staged,), {"scenario": scenario, "abstract": False})
