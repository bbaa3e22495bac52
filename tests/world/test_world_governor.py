"""The governor's part of the world: its clients meet each way in which a job can end, and its plan is its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from loadtests.world.governorjudge import GovernorFacts, GovernorJudge
from loadtests.world.play import Play
from loadtests.world.scenario import scenario

ROUTED = 24
"""A seed whose jobs go to the router, and without a fault."""


def played(seed: int) -> GovernorFacts:
    """What was seen of the governor in that seed."""
    play = Play(scenario(seed, size=150))
    play.run()
    return play._governed.facts


def test_among_the_seeds_jobs_leave_end_within_a_line_are_greedy_and_meet_every_fault() -> None:
    plans = [scenario(seed, size=300).governor for seed in range(1, 101)]
    manners = Counter(job.manner for plan in plans for job in plan.jobs)
    kinds = Counter(kind for plan in plans for kind, _, _ in plan.faults)
    assert min(manners[manner] for manner in ("whole", "leaves", "half", "greedy")) >= 20
    assert min(kinds.values()) >= 10
    assert len(kinds) == 4
    assert 35 <= sum(plan.router for plan in plans) <= 65
    assert sum(len(plan.jobs) for plan in plans) <= 0.09 * 300 * 100


def test_a_quarter_of_the_seeds_have_small_bounds_of_connections() -> None:
    made = [scenario(seed, size=300) for seed in range(1, 201)]
    assert 35 <= sum(each.tight is not None for each in made) <= 65


def test_the_governors_faults_end_before_the_others_must_have_ended() -> None:
    for seed in range(1, 101):
        made = scenario(seed, size=300)
        assert all(begins + lasts <= made.faults_end_s + 1e-9 for _, begins, lasts in made.governor.faults)


def test_what_breaks_a_promise_of_the_governors_is_named() -> None:
    facts = played(ROUTED)
    assert GovernorJudge(facts).verdicts() == []
    assert facts.plan.router
    done = [job for job in facts.jobs if job.end == "done"]
    one, other = done[0], done[1]
    one.final, other.final = other.final, one.final
    assert sum("foreign" in what for what in GovernorJudge(facts).verdicts()) == 2
    one.final, other.final = other.final, one.final
    one.end = "closed"
    assert any("failed without a fault" in what for what in GovernorJudge(facts).verdicts())
    one.end, one.ended_at = "done", None
    assert any("has not ended" in what for what in GovernorJudge(facts).verdicts())
    one.ended_at, facts.executed = one.sent_at, facts.executed + 1
    assert any("jobs were started" in what for what in GovernorJudge(facts).verdicts())
    facts.executed -= 1
    one.ask = replace(one.ask, sends_ttl=True)
    one.ended_at = one.sent_at + one.ask.client_timeout_s + 1
    assert any("after its time" in what for what in GovernorJudge(facts).verdicts())
