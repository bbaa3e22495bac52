"""The number of users of each group at each moment: a scenario's stages for Locust.

Locust's own dispatcher has one total and shares by weight. Here each stage sets the number per group, so that one group
can change while the others stay.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import gevent
from locust import LoadTestShape, User
from locust.dispatch import UsersDispatcher

from loadtests.scenarios.people import Stage
from loadtests.users.placing import nearer
from loadtests.users.run import Run

LOG_EVERY_S = 10.0

Users = list[type[User]]
Steps = Iterator[dict[str, dict[str, int]]]


class Stages(LoadTestShape):
    """Follows the stages, then ends the test. `begin` prepares a run; None if it cannot be played."""

    abstract = True

    def __init__(self, begin: Callable[[], Run | None]) -> None:
        super().__init__()
        self._begin = begin
        self._run: Run | None = None
        self._stage: Stage | None = None
        self._logged_s = 0.0

    def reset_time(self) -> None:
        self._run = None
        super().reset_time()

    def tick(self) -> tuple[int, float, Users] | None:
        """The users wanted now, once a second. Renews the stage's fault."""
        if self._run is None:
            self._run = self._begin()
            super().reset_time()
        if self._run is None or self.runner is None:
            return None
        stage = self._run.scenario.stage_at(self.get_run_time())
        now_s, all_s = self._run.seconds, self._run.scenario.seconds
        if stage is not None and (stage != self._stage or now_s >= self._logged_s + LOG_EVERY_S):
            self._logged_s = now_s
            print(f"{now_s:5.0f} of {all_s:g} s  {stage.name}: {stage.all_users} users", flush=True)
        self._stage = stage
        self._run.trouble.follow(stage)
        return (stage.all_users, stage.spawn_per_s, self._users(stage)) if stage else None

    def _users(self, stage: Stage) -> Users:
        """Each group's class, once per wanted user."""
        assert self.runner is not None, "a stage is followed by a runner"
        classes = self.runner.environment.user_classes_by_name
        return [classes[group] for group, count in stage.users.items() for _ in range(count)]


class Places(UsersDispatcher):
    """Starts users a few at a time until each class has its number. Surplus users leave after their answer.

    For one process only. Yields the number of users by class.
    """

    def __init__(self, worker_nodes: list[Any], user_classes: Users) -> None:
        if len(worker_nodes) != 1:
            raise ValueError("these scenarios run in one Locust process")
        super().__init__(worker_nodes, user_classes)
        self._node_id = worker_nodes[0].id
        self._counts = dict.fromkeys((one.__name__ for one in user_classes), 0)
        self._steps: Steps = iter(())

    def new_dispatch(self, target_user_count: int, spawn_rate: float, user_classes: Users | None = None) -> None:
        """Set the wanted users; none without classes."""
        wanted = Counter(one.__name__ for one in user_classes or [])
        self._steps = self._towards({name: wanted[name] for name in self._counts}, spawn_rate)

    def __next__(self) -> dict[str, dict[str, int]]:
        return next(self._steps)

    def _towards(self, wanted: dict[str, int], per_s: float) -> Steps:
        at_once = max(1, math.floor(per_s))
        while True:
            self._counts = nearer(self._counts, wanted, at_once)
            yield {self._node_id: dict(self._counts)}
            if self._counts == wanted:
                return
            gevent.sleep(at_once / per_s)
