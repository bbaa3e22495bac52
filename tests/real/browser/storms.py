"""Storms over the small world: what the storm bench says of itself, and what its scenarios do to the rates."""

from __future__ import annotations

import itertools
from typing import Any

from tests.console.world import DEADLINE_S, World

SECONDS = {
    "name": "seconds", "title": "For how long", "kind": "range", "min": 5, "max": 60, "step": 5, "default": 30,
    "unit": "s",
}  # fmt: skip
INTENSITY = {
    "name": "intensity", "title": "Load at the peak", "kind": "range", "min": 1, "max": 20, "step": 0.5, "default": 5,
    "unit": "× capacity",
}  # fmt: skip
OBEY = {
    "name": "obey", "title": "Clients obey the hint", "kind": "switch", "min": 0, "max": 1, "step": 1, "default": 1,
    "unit": "",
}  # fmt: skip
TITLES = {
    "steady": "Steady", "burst": "Burst", "noisy_neighbour": "Noisy neighbour", "retry_storm": "Retry storm",
    "slow_worker": "Slow worker", "redis_gone": "Redis gone",
}  # fmt: skip
CAPTIONS = {
    "steady": "Four tenants ask for a little less than the workers can do.",
    "burst": "For a quarter of the time the tenants ask for several times what the workers can do, and then for less.",
    "noisy_neighbour": "One tenant asks for far more than its share. The others ask as they always do.",
    "retry_storm": "Workers stand still for a while, and every client asks again at once.",
    "slow_worker": "One worker takes three times as long for each step.",
    "redis_gone": "The cache is frozen in the middle of the run.",
}
WATCH = [
    "The door turns away what would be late; the column “late” stays empty.",
    "p95 stays under the deadline, and goodput at capacity.",
    "Switch admission off and start it again: the lines fill, and nearly every answer is late.",
]


class Storms:
    def __init__(self, world: World) -> None:
        self.world = world
        self.calm = dict(world.rates)
        self.running: dict[str, Any] | None = None
        self.runs: list[dict[str, Any]] = []
        self._told: dict[str, list[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._began_s = 0.0
        self._before: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        return {"running": self._running(), "scenarios": [self._scenario(name) for name in TITLES], "runs": self.runs,
                "bounds": {"rate_per_s": 1000, "connections": 800, "seconds": 60}}  # fmt: skip

    def _scenario(self, name: str) -> dict[str, Any]:
        sliders = [INTENSITY, *([OBEY] if name == "retry_storm" else []), SECONDS]
        available = name != "redis_gone"
        return {"name": name, "title": TITLES[name], "caption": CAPTIONS[name], "watch": WATCH, "sliders": sliders,
                "available": available, "why_not": "" if available else "REDIS_URL is not set"}  # fmt: skip

    def start(self, scenario: str, sliders: dict[str, float]) -> str:
        run = f"run{next(self._numbers)}"
        filled = {one["name"]: one["default"] for one in self._scenario(scenario)["sliders"]} | sliders
        self.running = {"run": run, "scenario": scenario, "sliders": filled, "policy": dict(self.world.policy)}
        self._began_s, self._before = self.world.now_s, self._counts()
        return run

    def stop(self) -> str | None:
        if self.running is None:
            return None
        run: str = self.running["run"]
        self._end("stopped")
        return run

    def step(self) -> None:
        if self.running is None:
            return
        sliders, elapsed_s = self.running["sliders"], self.world.now_s - self._began_s
        if elapsed_s >= sliders["seconds"]:
            return self._end("done")
        storms = self.running["scenario"] == "steady" or elapsed_s < 0.6 * sliders["seconds"]
        peak = sliders["intensity"] * 33.0
        heavy = self.running["scenario"] == "noisy_neighbour"
        for name, calm in self.calm.items():
            share = (0.9 if name == "chen" else 0.03) if heavy else 0.25
            self.world.rates[name] = max(calm, peak * share) if storms else calm
        self.world.slow = 2.0 if self.running["scenario"] == "slow_worker" else 1.0

    def _end(self, how: str) -> None:
        running = self.running
        assert running is not None
        sent = max(1, self._since()["sent"])
        self._told[running["run"]] = self._tenants()
        self.runs.insert(0, running | {
            "title": TITLES[running["scenario"]], "began_at_ms": 1.79e12, "seconds": running["sliders"]["seconds"],
            "lasted_s": self.world.now_s - self._began_s, "ended": how, "why": "", "policy_changed": False,
            "capacity_per_s": 33.1, "on_time_share": self._since()["on_time"] / sent, "goodput_share": 0.98,
            "p50_ms": 612, "p95_ms": 1430, "deadline_ms": DEADLINE_S * 1000, "wasted_share": 0.01, **self._since(),
        })  # fmt: skip
        self.running = None
        self.world.rates.update(self.calm)
        self.world.slow = 1.0

    def _counts(self) -> dict[str, int]:
        totals = self.world.totals
        return {"on_time": totals["served"], "late": totals["deadline_exceeded"], "failed": 0, "gone": 0,
                "refused": totals["deadline_infeasible"] + totals["yield"] + totals["tenant_queue_full"],
                "sent": self.world.decided}  # fmt: skip

    def _since(self) -> dict[str, int]:
        counts = {name: n - self._before[name] for name, n in self._counts().items()}
        return counts | {"sent": sum(counts[name] for name in ("on_time", "late", "refused"))}

    def _tenants(self) -> list[dict[str, Any]]:
        """As if all fared alike: the page is to show it, not to know why."""
        since = self._since()
        return [{"id": name, "sent": since["sent"], "on_time": since["on_time"]} for name in self.calm]

    def told(self, run: str) -> dict[str, Any] | None:
        return next((one | {"tenants": self._told[run]} for one in self.runs if one["run"] == run), None)

    def _running(self) -> dict[str, Any] | None:
        if self.running is None:
            return None
        name, sliders = self.running["scenario"], self.running["sliders"]
        return {
            "run": self.running["run"], "scenario": name, "title": TITLES[name], "caption": CAPTIONS[name],
            "watch": WATCH, "phase": "storming", "now": "the burst", "began_at_ms": 1.79e12,
            "elapsed_s": self.world.now_s - self._began_s, "seconds": sliders["seconds"], "sliders": sliders,
            "capacity_per_s": 33.1, "rate_per_s": sum(self.world.rates.values()), "held_back": 0, "open": 12,
            **self._since(), "refused_by_code": {}, "p50_ms": 612, "p95_ms": 1430, "deadline_ms": DEADLINE_S * 1000,
            "series": [], "tenants": self._tenants(), "marks": [],
        }  # fmt: skip
