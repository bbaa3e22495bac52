"""The baselines do what their names say, Weir's adapter translates, and a policy that cheats is found out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from loadtests.scenarios.changes import Changes, changed
from loadtests.scenarios.model import find, load_raw, parse
from loadtests.simulator import capacity, engine
from loadtests.simulator.accounts import Account, LedgerError
from loadtests.simulator.clients import Tenant
from loadtests.simulator.job import Job
from loadtests.simulator.policies.fifo import Fifo
from loadtests.simulator.policies.round_robin import RoundRobin
from loadtests.simulator.policies.vtc import Vtc
from loadtests.simulator.policy import Policy, Refusal
from loadtests.simulator.predictions import Predictions
from loadtests.simulator.simulation import Simulation
from services.cli.errors import LabError
from services.core.cost import Weights
from services.core.outcome import Outcome
from tests.loadtests.simulator.worlds import SLOTS, Script, run, scenario, unmeasured

(GROUP,) = scenario({"max_tokens": 1000}).tenants


def job(tenant: str, *, prompt: int = 10, answer: int = 10, deadline_s: float = 100.0, at: float = 0.0) -> Job:
    made = Job(1, Tenant(tenant, GROUP, Account(), 0, False), at, prompt, 0, answer, deadline_s, deadline_s)
    made.wait()
    return made


def filled(policy: Policy, *jobs: Job) -> Policy:
    for each in jobs:
        assert policy.offer(0.0, each) is None
    return policy


def order(policy: Policy, now: float = 1.0) -> str:
    """The tenants of the jobs that it starts, one after the other."""
    started = ""
    while (taken := policy.next(now)[0]) is not None:
        started += taken.tenant
        policy.finish(now, taken, Outcome.SERVED, taken.prompt_tokens, taken.natural_tokens)
    return started


def test_fifo_keeps_order_and_round_robin_takes_turns() -> None:
    jobs = [job(name) for name in "aaabbc"]
    assert order(filled(Fifo(), *jobs)) == "aaabbc"
    assert order(filled(RoundRobin(), *jobs)) == "abcaba"


def test_a_bounded_fifo_refuses_what_is_above_its_bound() -> None:
    policy = filled(Fifo(queue_size=2), job("a"), job("b"))
    refusal = policy.offer(0.0, job("c"))
    assert refusal is not None
    assert refusal.outcome is Outcome.TENANT_QUEUE_FULL
    with pytest.raises(ValueError, match="at least 1"):
        Fifo(queue_size=0)


@pytest.mark.parametrize("policy", [Fifo(drops_expired=True), RoundRobin()])
def test_ttl_drops_what_is_late_on_the_way_to_what_is_not(policy: Policy) -> None:
    late, early = job("a", deadline_s=1.0), job("a", deadline_s=3.0)
    taken, dropped = filled(policy, late, early).next(2.0)
    assert taken is early
    assert list(dropped) == [late]


# ---- VTC


def vtc(weights: dict[str, float] | None = None) -> Vtc:
    return Vtc(weights or {}, prompt_weight=1.0, completion_weight=2.0)


def test_vtc_serves_the_tenant_that_had_the_least() -> None:
    heavy = [job("a", answer=100) for _ in range(3)]
    light = [job("b", answer=10) for _ in range(6)]
    assert order(filled(vtc(), *heavy, *light)) == "abbbbbbaa"


def test_vtc_counts_by_weight() -> None:
    jobs = [job(name) for name in "aaabbbbbb"]
    assert order(filled(vtc({"a": 1.0, "b": 2.0}), *jobs)) == "abbabbabb"


def test_vtc_lifts_who_returns_so_that_idleness_is_no_credit() -> None:
    policy = vtc()
    filled(policy, *(job("a") for _ in range(10)))
    for _ in range(5):
        taken, _ = policy.next(0.0)
        assert taken is not None
        policy.finish(0.0, taken, Outcome.SERVED, 10, 10)
    filled(policy, *(job("b") for _ in range(5)))
    assert order(policy) in ("ababababab", "bababababa")  # not bbbbb first


class Ticker:
    """A worker that gives each job a hundred tokens a second."""

    def generated(self, now: float, job: Job) -> int:
        return int(100 * now)


def test_vtc_charges_tokens_as_they_are_generated() -> None:
    policy = vtc()
    running, *others = (job(name, answer=1000) for name in "abbb")
    filled(policy, running)
    policy.next(0.0)
    running.worker = Ticker()  # type: ignore[assignment]
    filled(policy, *others, job("a"))
    # By 0.6 s, a was charged 10 for its prompt and 2 * 60 for its answer; each start of b costs 10.
    assert [taken.tenant for _ in range(3) if (taken := policy.next(0.6)[0])] == ["b", "b", "b"]


# ---- Weir


def test_weir_takes_its_settings_by_their_names_and_says_which_it_has_not() -> None:
    world = scenario({}, weir={"safety_margin": 0.5, "bounds": {"requests": 10}, "tenant_bounds": 3})
    assert run(world, "weir").ledger.distinct > 0
    with pytest.raises(LabError, match="no setting marginn"):
        run(world, "weir", marginn=1)
    with pytest.raises(LabError, match="safety_margin"):
        run(world, "weir", safety_margin=7)
    with pytest.raises(LabError, match="bounds of Weir"):
        run(world, "weir", bounds={"requests": 0})
    with pytest.raises(LabError, match="setting of the policy fifo"):
        run(world, "fifo", queue_size=0)


def test_weir_predicts_and_the_shares_below_its_quantiles_are_told() -> None:
    tenant = {"arrivals": {"kind": "poisson", "rate_per_s": 60}, "deadline_s": 2}
    coverage = unmeasured(scenario(tenant), "weir").coverage
    assert coverage is not None
    assert list(coverage.shares) == [0.5, 0.9, 0.95]
    assert 0 < coverage.shares[0.5] <= coverage.shares[0.9] <= coverage.shares[0.95] <= 1
    assert unmeasured(scenario(tenant), "fifo").coverage is None


def test_a_policy_choice_may_switch_degradation_and_clamping_for_all() -> None:
    tenant = {
        "arrivals": {"kind": "poisson", "rate_per_s": 300},
        "context_tokens": 500,
        "deadline_s": 1,
        "max_level": 4,
        "may_clamp": True,
    }
    raw = {"policy": "weir", "label": "plain", "max_level": 0, "may_clamp": False}
    world = scenario(tenant, policies=["weir", raw])
    with_ladder, plain = (engine.run(world, choice).quality for choice in world.policies)
    assert set(plain.by_level) == {0}
    assert plain.clamped == 0
    assert max(with_ladder.by_level) > 0
    assert with_ladder.weighted_on_time < sum(with_ladder.by_level.values())


class Prophet(Fifo):
    """Predicts one second, always, as its median and as its q90."""

    quantiles = (0.5, 0.9)

    def predicted(self, job: Job) -> Sequence[float]:
        return (1.0, 2.0)


def test_coverage_counts_waits_and_those_who_waited_longer_in_vain() -> None:
    predictions = Predictions(Prophet())
    for waited_s in (0.5, 1.0, 1.5, 2.5):
        predictions.started(waited_s, job("a"))
    predictions.gave_up(1.5, job("a"))  # nobody knows how long it would have waited
    predictions.gave_up(2.5, job("a"))
    told = predictions.coverage()
    assert told is not None
    assert (told.count, told.shares) == (5, {0.5: 2 / 5, 0.9: 3 / 5})


# ---- what the simulation checks of a policy


class Cheat(Fifo):
    """Starts a job twice, or after its client left, though it says that it cancels."""

    cancels = True

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self._last: Job | None = None
        self._twice = twice

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        if self._last is None or not self._twice:
            self._last, dropped = super().next(now)
            return self._last, dropped
        return self._last, ()


class Dropper(Fifo):
    """Drops a job that it has started."""

    def next(self, now: float) -> tuple[Job | None, Sequence[Job]]:
        taken, _ = super().next(now)
        return taken, [each for each in self.started if each is not taken]

    def offer(self, now: float, job: Job) -> Refusal | None:
        self.started = [*getattr(self, "started", []), job]
        return super().offer(now, job)


class Sleepless(Fifo):
    """Always wants to be woken at once."""

    def wakes_at(self) -> float:
        return 0.0


def drive(policy: Policy, asked: list[tuple[float, int, int, float]]) -> Simulation:
    world = scenario({"max_tokens": 100_000}, worker=SLOTS | {"slots": 1})
    simulation = Simulation(world, Script(world, asked), policy, Weights(), seed=1)
    simulation.run_until(10)
    simulation.drain()
    return simulation


QUEUE = [(0.0, 10, 1000, 9.0), (0.1, 10, 10, 0.2), (0.2, 10, 10, 9.0)]


@pytest.mark.parametrize("policy", [Cheat(twice=True), Cheat(twice=False), Dropper()])
def test_a_policy_that_starts_or_drops_what_it_may_not_is_found_out(policy: Policy) -> None:
    with pytest.raises(LedgerError):
        drive(policy, QUEUE)


def test_a_policy_that_never_sleeps_is_found_out() -> None:
    with pytest.raises(RuntimeError, match="for ever"):
        drive(Sleepless(), QUEUE)


@pytest.mark.parametrize("policy", [Fifo(), RoundRobin(cancels=True), vtc()])
def test_nobody_waits_when_all_is_over(policy: Policy) -> None:
    series = drive(policy, QUEUE).timeline.series()
    assert series.queue_depth[0] > 0
    assert series.queue_depth[-1] == series.running[-1] == 0


def test_weir_without_a_mechanism_loses_what_that_mechanism_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "ANSWERS", 2_000)  # a rough capacity will do, remembered by a seed of its own
    raw = changed(load_raw(find("switches")), Changes(duration_s=14.0, sets=("seed=4712",)))
    world = parse(raw, name="switches")
    reports = {choice.name: engine.run(world, choice) for choice in world.policies}
    wasted = {name: report.work.wasted_share for name, report in reports.items()}
    on_time = {name: report.goodput_per_s for name, report in reports.items()}
    small = {
        name: next(tenant.on_time_share for tenant in report.tenants if tenant.name == "small") or 0.0
        for name, report in reports.items()
    }
    assert on_time["no_admission"] < 0.5 * on_time["weir"]
    assert small["no_fairness"] < 0.3 < 0.95 < small["weir"]
    assert wasted["no_cancellation"] > 2 * wasted["weir"]
    assert (on_time["none_of_them"], wasted["none_of_them"] > 0.95) == (0.0, True)


def test_a_burst_of_two_seconds_uses_the_whole_slack_and_a_longer_overload_does_not() -> None:
    """Ten times the capacity: 2 s and 0.72 s of queue are answered, with 16 slots less one queue of before."""

    def on_time(from_s: float, until_s: float, burst_s: float) -> tuple[float, list[float]]:
        """Answers of the arrivals between two seconds, over the capacity, and their latencies."""
        phases = f"tenants.tenant.arrivals.phases=[{{from_s: 5, until_s: {5 + burst_s}, times: 13.3333}}]"
        raw = changed(load_raw(find("short_burst")), Changes(sets=(phases, "windows=[]", "must=[]")))
        file = parse(raw)
        latencies_s: list[float] = []

        def ended(now: float, job: Job, outcome: str) -> None:
            if from_s <= job.arrived_at < until_s and outcome == Outcome.SERVED:
                latencies_s.append(now - job.arrived_at)

        report = engine.run(file, file.policies[0], ended=ended)
        return len(latencies_s) / (until_s - from_s) / report.capacity.requests_per_s, sorted(latencies_s)

    share, _ = on_time(5.0, 7.0, 2.0)
    assert share > 1.28
    share, latencies_s = on_time(8.0, 11.0, 6.0)
    assert share > 0.97
    assert latencies_s[int(0.95 * len(latencies_s))] < 0.4


@pytest.mark.parametrize("policies", ["no-queue", 7, ["no-admission"]])
def test_a_policy_of_weir_that_is_none_is_named(policies: object) -> None:
    with pytest.raises(LabError, match="is no policy"):
        run(scenario({}), "weir", policies=policies)


def test_groups_of_many_tenants_share_an_account() -> None:
    report = unmeasured(scenario({"count": 300, "arrivals": {"kind": "poisson", "rate_per_s": 50}}), "weir")
    (tenant,) = report.tenants
    assert (tenant.name, tenant.tenants) == ("t0", 300)
    assert tenant.ledger == report.ledger


def test_a_report_is_json() -> None:
    raw: dict[str, Any] = json.loads(json.dumps(run(scenario({}), "weir").to_json()))
    assert raw["policy"] == "weir"
    assert raw["work"]["utilisation"] >= 0
    assert parse({**scenario({}).model_dump(by_alias=True, mode="json")}).title == "test"
