"""One run, from its first question to the workers until nothing of it is left.

    preparing    what can the workers do, what has the router counted; what is left of the last run ends first
    storming     everybody comes; what is to break breaks, and heals
    settling     nobody comes any more; the last answers are waited for

However it ends, stopped or by a fault of our own, everybody leaves and whatever was broken is mended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from loadtests.storm.arrivals import Scale, arrivals, scale
from loadtests.storm.capacity import Capacity, NoCapacity, announced
from loadtests.storm.config import StormSettings
from loadtests.storm.door import HttpDoor
from loadtests.storm.ledger import Ledger
from loadtests.storm.people import Bounds, Crowd
from loadtests.storm.plan import Plan
from loadtests.storm.scenarios import Scenario
from loadtests.storm.silence import NotSilenced
from loadtests.storm.slowing import Unbroken
from loadtests.storm.troubles import begin_troubles
from loadtests.storm.watching import Counters, Frame, Watching, counted, counters
from services.contracts.storm import Ended, Mark, Phase, PolicyTold, Running
from services.contracts.storm import Run as RunTold
from services.runtime.log import Log

GRACE_S = 0.5
"""What a last answer may take beyond its client's patience."""
REST_WITHIN_S = 15.0
"""A storm begins all the same after this: somebody else may be asking, or a backlog may never end."""
FIRST_FRAME_WITHIN_S, LOOK_EVERY_S = 0.5, 0.1
COUNTED_AFTER_S = 0.2
"""By then the router has noticed who has left, and counted them."""
COUNTED_WITHIN_S = 0.5
WORDS: dict[Phase, str] = {"preparing": "until the router is at rest", "settling": "the last answers"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asked for, checked."""

    id: str
    scenario: Scenario
    values: Mapping[str, float]
    began_at_ms: int


class Run:
    """One run of one scenario."""

    def __init__(self, wish: Wish, settings: StormSettings, log: Log) -> None:
        self.wish = wish
        self.plan: Plan = wish.scenario.plan(wish.values)
        self.ledger = Ledger()
        self.phase: Phase = "preparing"
        self._settings = settings
        self._token = settings.shared_token
        self._log = log
        self._capacity: Capacity | None = None
        self._scale = Scale(0.0)
        self._crowd: Crowd | None = None
        self._frame: Frame | None = None
        self._policies: list[PolicyTold] = []
        self._before: Counters | None = None
        self._after: Counters | None = None
        self._lasted_s = self._storm_s = 0.0
        self._ended: Ended = "failed"
        self._why = ""

    # Going on

    async def play(self) -> None:
        """The whole run. Cancelled, it ends at once, and says that it was stopped."""
        watching = asyncio.ensure_future(Watching(self._settings.storm_router_url, self._hear).watch())
        try:
            await self._play()
            self._ended = "done"
        except asyncio.CancelledError:
            self._ended = "stopped"
        except (NoCapacity, NotSilenced, Unbroken) as error:
            self._why = str(error)
        except Exception as error:
            self._why = f"a fault of the bench: {type(error).__name__}"
            self._log.error("a run failed", run=self.wish.id, error=repr(error))
        finally:
            self._lasted_s = self._now_s
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await asyncio.sleep(COUNTED_AFTER_S)
            self._after = await counters(self._settings.storm_metrics_url, COUNTED_WITHIN_S, self._token)

    async def _play(self) -> None:
        settings = self._settings
        self._capacity = await self._measured()
        await self._rest()
        self._before = await counters(settings.storm_metrics_url, token=self._token)
        self._scale = scale(self.plan, self._capacity.per_s, settings.storm_max_rps)
        bounds = Bounds(settings.storm_max_rps, settings.storm_connections)
        door = HttpDoor(settings.storm_router_url, self.plan.question, bounds.connections)
        self._crowd = crowd = Crowd(self.plan.manners, door, self.ledger, bounds)
        self.phase, self._policies = "storming", self._policies[-1:]
        try:
            await self._storm(crowd)
            self._storm_s = self.plan.seconds
            self.phase = "settling"
            await crowd.settle(self.plan.manners.patience_s + GRACE_S)
        finally:
            self._storm_s = self._storm_s or self._now_s
            await crowd.leave()
        crowd.check()

    async def _storm(self, crowd: Crowd) -> None:
        """Until the last has come and everything is mended; what cannot be broken ends it."""
        coming = asyncio.ensure_future(self._come(crowd))
        troubles = begin_troubles(self.plan.troubles, self._settings)
        tasks = {coming, *troubles}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        except BaseException:  # stopped, or what was to be broken could not be: nobody stays until all is mended
            coming.cancel()
            await crowd.leave()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _come(self, crowd: Crowd) -> None:
        await crowd.come(arrivals(self.plan, self._scale.per_s))
        await asyncio.sleep(max(0.0, self.plan.seconds - crowd.now_s))

    async def _measured(self) -> Capacity:
        given_per_s = self._settings.storm_capacity_rps
        try:
            told = await announced(self._settings.worker_urls, self.plan.question, self._token)
        except NoCapacity:
            if not given_per_s:
                raise
            return Capacity(given_per_s)
        return Capacity(given_per_s or told.per_s, told.slots)

    async def _rest(self) -> None:
        """Wait until the router is as if nobody had asked before, if it says how it is."""
        now = asyncio.get_running_loop().time
        began_at = now()
        while now() < began_at + (FIRST_FRAME_WITHIN_S if self._frame is None else REST_WITHIN_S):
            if self._frame is not None and self._frame.at_rest:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def _hear(self, frame: Frame) -> None:
        self._frame = frame
        self.ledger.heard(self._now_s, frame.waiting.requests, frame.level)
        if frame.policy is not None and (not self._policies or self._policies[-1] != frame.policy):
            del self._policies[1:]  # the first, and the last
            self._policies.append(frame.policy)

    @property
    def _now_s(self) -> float:
        return 0.0 if self._crowd is None else self._crowd.now_s

    # Being told

    def running(self) -> Running:
        """As it is now."""
        ledger, plan, scenario, now_s = self.ledger, self.plan, self.wish.scenario, self._now_s
        told = Running(
            run=self.wish.id, scenario=scenario.name, title=scenario.title, caption=scenario.caption,
            watch=list(scenario.watch), phase=self.phase,
            now=WORDS.get(self.phase) or plan.words_at(now_s),
            began_at_ms=self.wish.began_at_ms, elapsed_s=round(now_s, 2), seconds=plan.seconds,
            sliders=dict(self.wish.values), capacity_per_s=self._capacity_per_s,
            rate_per_s=0.0 if self.phase in WORDS else round(plan.times_at(now_s) * self._scale.per_s, 1),
            capped=self._scale.capped, open=ledger.open,
            refused_by_code=dict(ledger.refused), failed_by_code=dict(ledger.failed),
            p50_ms=ledger.all.latency.quantile_ms(0.5), p95_ms=ledger.all.latency.quantile_ms(0.95),
            deadline_ms=plan.manners.deadline_s * 1000, series=ledger.series(now_s), tenants=ledger.tenants(),
            marks=self._marks(),
        )  # fmt: skip
        return ledger.all.fill(told)

    def told(self) -> RunTold:
        """What it came to, once it is over."""
        ledger, plan, scenario = self.ledger, self.plan, self.wish.scenario
        asked, answered = ledger.people
        could = (self._capacity_per_s or 0.0) * self._storm_s
        slot_s = (self._capacity.slots if self._capacity else 0) * self._lasted_s
        counts, wasted_s = ledger.all.counts, self._wasted_s()
        told = RunTold(
            run=self.wish.id, scenario=scenario.name, title=scenario.title, began_at_ms=self.wish.began_at_ms,
            seconds=plan.seconds, lasted_s=round(self._lasted_s, 2), ended=self._ended, why=self._why,
            sliders=dict(self.wish.values), policy=self._policies[0] if self._policies else None,
            policy_changed=len(self._policies) > 1, capacity_per_s=self._capacity_per_s, capped=self._scale.capped,
            on_time_share=_share(counts["on_time"], counts["sent"]), goodput_share=_share(counts["on_time"], could),
            answered_share=_share(answered, asked), p50_ms=ledger.all.latency.quantile_ms(0.5),
            p95_ms=ledger.all.latency.quantile_ms(0.95), deadline_ms=plan.manners.deadline_s * 1000,
            wasted_s=None if wasted_s is None else round(wasted_s, 2),
            wasted_share=None if wasted_s is None else _share(wasted_s, slot_s),
            caption=scenario.caption, watch=list(scenario.watch), series=ledger.series(self._lasted_s),
            tenants=ledger.tenants(), refused_by_code=dict(ledger.refused), failed_by_code=dict(ledger.failed),
            sources=dict(ledger.sources),
            router_counted=counted(self._before, self._after, {load.tenant for load in plan.loads}),
            marks=self._marks(), worst_lag_ms=round(ledger.worst_lag_s * 1000, 1),
        )  # fmt: skip
        return ledger.all.fill(told)

    @property
    def _capacity_per_s(self) -> float | None:
        return None if self._capacity is None else round(self._capacity.per_s, 2)

    def _wasted_s(self) -> float | None:
        if self._before is None or self._after is None:
            return None
        return max(0.0, self._after.wasted_s - self._before.wasted_s)

    def _marks(self) -> list[Mark]:
        return [Mark(round(chapter.from_s, 2), chapter.words) for chapter in self.plan.chapters if chapter.from_s > 0]


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None
