"""How many users of which group there are at each moment: Locust's view of a scenario's stages.

Locust's own dispatcher knows a number of users and shares by weight. Here each stage says how many there are of each
group, so that a crowd can come and go while the quiet ones stay who they are.
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

TELL_EVERY_S = 10.0

Users = list[type[User]]
Steps = Iterator[dict[str, dict[str, int]]]


class Stages(LoadTestShape):
    """Follows the stages, then ends the test. `begin` prepares a run, or says why there is none by returning None."""

    abstract = True

    def __init__(self, begin: Callable[[], Run | None]) -> None:
        super().__init__()
        self._begin = begin
        self._run: Run | None = None
        self._stage: Stage | None = None
        self._told_s = 0.0

    def reset_time(self) -> None:
        """Locust calls this where a run begins, and does not wait for it."""
        self._run = None
        super().reset_time()

    def tick(self) -> tuple[int, float, Users] | None:
        """Every second: whom there should be. What the stage breaks is put again."""
        if self._run is None:
            self._run = self._begin()
            super().reset_time()
        if self._run is None or self.runner is None:
            return None
        stage = self._run.scenario.stage_at(self.get_run_time())
        now_s, all_s = self._run.seconds, self._run.scenario.seconds
        if stage is not None and (stage != self._stage or now_s >= self._told_s + TELL_EVERY_S):
            self._told_s = now_s
            print(f"{now_s:5.0f} of {all_s:g} s  {stage.name}: {stage.all_users} users", flush=True)
        self._stage = stage
        self._run.trouble.follow(stage)
        return (stage.all_users, stage.spawn_per_s, self._users(stage)) if stage else None

    def _users(self, stage: Stage) -> Users:
        """Each group's class, as many times as it should have users."""
        assert self.runner is not None, "a stage is followed by a runner"
        classes = self.runner.environment.user_classes_by_name
        return [classes[group] for group, count in stage.users.items() for _ in range(count)]


class Places(UsersDispatcher):
    """Starts users until each class has as many as it is named, a few at a time. Others leave after their answer.

    For one process: users are not spread over several. What is yielded is the number of users of each class by then.
    """

    def __init__(self, worker_nodes: list[Any], user_classes: Users) -> None:
        if len(worker_nodes) != 1:
            raise ValueError("these scenarios run in one Locust process")
        super().__init__(worker_nodes, user_classes)
        self._node_id = worker_nodes[0].id
        self._counts = dict.fromkeys((one.__name__ for one in user_classes), 0)
        self._steps: Steps = iter(())

    def new_dispatch(self, target_user_count: int, spawn_rate: float, user_classes: Users | None = None) -> None:
        """From now on these; without any, nobody."""
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
