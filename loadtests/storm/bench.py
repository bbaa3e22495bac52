"""The bench: one run at a time, the last twenty results, and what each scenario lacks here."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque

import msgspec

from loadtests.storm.config import StormSettings
from loadtests.storm.run import Run, RunRequest
from loadtests.storm.scenarios import SCENARIOS, Button
from loadtests.storm.sliders import MAX_SECONDS, slider_values
from loadtests.storm.troubles import missing
from services.contracts.storm import MAX_KEPT_RUNS, ScenarioDescription, StartRun, State, Summary
from services.contracts.storm import Bounds as RunBounds
from services.contracts.storm import Run as RunResult
from services.runtime.clock import unix_milliseconds
from services.runtime.errors import BadInput
from services.runtime.log import Log

LOOK_EVERY_S = 2.0
WITH_TENANTS = "the router has a tenants file, whose tenants' capacity is not for storms"


class StormBench:
    """The state behind the HTTP routes."""

    def __init__(self, settings: StormSettings, log: Log) -> None:
        self._settings = settings
        self._log = log
        self._run: Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._looking: asyncio.Task[None] | None = None
        self._kept: deque[RunResult] = deque(maxlen=MAX_KEPT_RUNS)
        self._lacking: dict[str, str] = {}

    async def begin(self) -> None:
        """Check which scenarios can run here, now and repeatedly."""
        await self._look()
        self._looking = asyncio.ensure_future(self._look_on())

    async def end(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self.stop()

    def start(self, asked: StartRun) -> str:
        """Start a run and return its id. Raises BadInput."""
        scenario = SCENARIOS.get(asked.scenario)
        if scenario is None:
            known = ", ".join(SCENARIOS)
            raise BadInput(f"scenario: there are {known}", "scenario", status=404, code="no_such_scenario")
        values = slider_values(scenario.sliders, asked.sliders)
        if self._run is not None:
            raise BadInput("a storm goes on: stop it first", status=409, code="storm_running")
        if why := self._lacking.get(scenario.name, ""):
            raise BadInput(why, status=409, code="storm_unavailable")
        request = RunRequest(secrets.token_hex(4), scenario, values, unix_milliseconds())
        self._stopping = False
        self._run = run = Run(request, self._settings, self._log)
        self._task = asyncio.ensure_future(self._play(run))
        self._log.info("a storm begins", run=request.id, scenario=scenario.name, **values)
        return request.id

    async def stop(self) -> str | None:
        """Stop the current run: clients disconnect and faults end. Returns its id; None if nothing runs."""
        run, task = self._run, self._task
        if run is None or task is None:
            return None
        if not self._stopping:  # only once: a second cancel would interrupt the cleanup
            self._stopping = True
            task.cancel()
        await asyncio.wait({task})
        return run.request.id

    async def _play(self, run: Run) -> None:
        try:
            await run.play()
        finally:
            result = run.result()
            self._kept.appendleft(result)
            self._run = self._task = None
            self._log.info("a storm is over", run=result.run, ended=result.ended, why=result.why, sent=result.sent)

    def state(self) -> State:
        settings = self._settings
        return State(
            running=None if self._run is None else self._run.running(),
            scenarios=[self._described(scenario) for scenario in SCENARIOS.values()],
            runs=[_summary(run) for run in self._kept],
            bounds=RunBounds(settings.storm_max_rps, settings.storm_connections, MAX_SECONDS),
        )

    def kept(self, id: str) -> RunResult:
        """The result of an ended run. Raises BadInput if it is unknown or no longer kept."""
        for run in self._kept:
            if run.run == id:
                return run
        message = f"there is no run {id[:32]!r} here: the last {MAX_KEPT_RUNS} are kept, until this process ends"
        raise BadInput(message, "run", status=404, code="no_such_run")

    def _described(self, button: Button) -> ScenarioDescription:
        why_not = self._lacking.get(button.name, "")
        return ScenarioDescription(
            button.name, button.file.title, button.caption, list(button.file.watch), list(button.sliders),
            available=not why_not, why_not=why_not,
        )  # fmt: skip

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._run is None:
                await self._look()

    async def _look(self) -> None:
        """Check what each scenario lacks. Not during a run, when a paused cache answers late."""
        if self._settings.tenants_file is not None:
            self._lacking = dict.fromkeys(SCENARIOS, WITH_TENANTS)
            return
        needs = {scenario.needs for scenario in SCENARIOS.values()}
        lacking = {need: await missing(need, self._settings) for need in needs}
        self._lacking = {name: lacking[scenario.needs] for name, scenario in SCENARIOS.items()}


def _summary(run: RunResult) -> Summary:
    return msgspec.convert({name: getattr(run, name) for name in Summary.__struct_fields__}, Summary)
