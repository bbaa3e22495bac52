"""A scenario's file on the world: the same loads and failures, all of HTTP, and every promise judged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtests.cluster import loop
from loadtests.scenarios.changes import Changes
from loadtests.scenarios.model import Scenario as ScenarioFile
from loadtests.scenarios.stages import on_stage
from loadtests.world import play as playing
from loadtests.world.play import Play
from loadtests.world.scenario import Fault
from loadtests.world.staging import ANSWER_TOKENS, made_of, targets
from services.cli.errors import LabError

SHORT = ("duration_s=3", "warm_up_s=0", "cool_down_s=0")


def file(name: str, *sets: str) -> ScenarioFile:
    return on_stage(name, "world", Changes(sets=sets))


def test_its_tenants_are_answered_as_the_file_wants_and_each_answer_takes_its_time() -> None:
    wanted = file("half", *SHORT)
    play = Play(made_of(wanted))
    result = play.run()
    assert result.violations == []
    assert result.on_time == {"tenant": 1.0}
    (figure,) = targets(wanted, result)
    assert (figure.held, figure.target, figure.value) == (True, 0.99, 1.0)
    answers = [json.loads(b"".join(one.body)) for one in play.facts.tries if one.status == 200]
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {ANSWER_TOKENS}


def test_at_twice_the_capacity_about_half_is_answered_and_every_promise_holds() -> None:
    result = Play(made_of(file("overload_2x", *SHORT))).run()
    assert result.violations == []
    assert result.on_time["tenant"] == pytest.approx(0.5, abs=0.1)  # what waits at the end is answered too


STORM = (*SHORT[1:], "duration_s=5", "windows=[]", "must=[]",
         "tenants.tenant.arrivals.phases=[{from_s: 1, until_s: 4, times: 5.3333}]")  # fmt: skip


def test_impatient_clients_repeat_their_bytes_on_their_connection_and_cost_the_obedient_ones_nothing() -> None:
    def obedient(name: str) -> tuple[Play, float]:
        play = Play(made_of(file(name, *STORM)))
        result = play.run()
        assert result.violations == []
        return play, result.on_time.get("tenant, others", result.on_time["tenant"])

    play, beside = obedient("early_retries")
    again = [one for one in play.facts.tries if one.follows is not None and one.ask.manner == "naive"]
    assert len(again) > 1000
    assert all(one.nonce == one.follows.nonce for one in again if one.follows is not None)
    own = [one for one in again if one.follows is not None and one.over is one.follows.over]
    assert len(own) > 0.95 * len(again)  # of the others, somebody else has taken the connection meanwhile
    assert sum(one.early for one in own) > 0.95 * len(own)
    assert not any(one.early for one in again if one not in own)
    _, alone = obedient("hints_obeyed")
    assert beside >= alone


def test_workers_fail_when_and_as_the_file_says() -> None:
    made = made_of(file("outage_killed"))
    assert made.faults == [Fault("killed worker", 7.0, 4.0, worker, 2.0) for worker in (0, 1)]
    assert [fault.worker for fault in made_of(file("outage_frozen")).faults] == [0, 1]
    (slow,) = made_of(file("slow_worker")).faults
    assert (slow.kind, slow.worker, slow.factor) == ("slow worker", 0, 4.0)


FEW = ("warm_up_s=0", "cool_down_s=0", "must=[]", "workers.0.count=1", "workers.0.slots=4", "duration_s=14",
       "tenants.0.arrivals.load=0.3")  # fmt: skip
STARTED_S = loop.BEGINS_S + playing.BEGINS_S
"""When the first request of a file may be sent."""
SLOW_SPELLS = {
    "slow_minute": "[{from_s: 3, until_s: 7, kind: slow, factor: 4}]",
    "cold_restart": "[{from_s: 3, until_s: 5}, {from_s: 5, until_s: 7, kind: slow, factor: 8}]",
}


@pytest.mark.parametrize("name", SLOW_SPELLS)
def test_five_seconds_after_a_slow_spell_every_answer_is_whole(name: str) -> None:
    play = Play(made_of(file(name, *FEW, f"workers.0.failures={SLOW_SPELLS[name]}")))
    assert play.run().violations == []
    after = [one for one in play.facts.tries if STARTED_S + 12.0 <= one.sent_at <= STARTED_S + 14.0]
    assert len(after) > 10
    assert {one.status for one in after} == {200}
    assert {one.headers[b"x-weir-level"] for one in after} == {b"0"}
    assert not [one for one in after if b"x-weir-degraded" in one.headers]


def test_a_load_changes_when_the_file_says() -> None:
    loads = [load for load in made_of(file("burst")).loads if load.group is not None]
    assert [(load.begins_s, load.lasts_s) for load in loads] == [(0.0, 20.0), (20.0, 20.0), (40.0, 80.0)]
    assert loads[1].per_s / loads[0].per_s == pytest.approx(13.3333)
    assert loads[2].per_s == loads[0].per_s == pytest.approx(0.75 * 200)


@pytest.mark.parametrize(
    ("name", "sets", "told"),
    [
        ("big_neighbour", (), "all answers have one length"),
        ("bursty", ("tenants.tenant.completion_tokens=50",), "no gamma arrivals"),
        ("bursty", (), "completion_tokens: the world needs a number"),
        ("outage", (), "the world has no backoff"),
        ("steps_overload", (), "one group of workers of the kind `slots`"),
        ("mixed_deadlines", (), "deadline_s: the world needs a number"),
    ],
)
def test_what_the_world_cannot_play_is_said_with_its_place(name: str, sets: tuple[str, ...], told: str) -> None:
    with pytest.raises(LabError, match=told):
        made_of(file(name, *sets))


def test_the_same_file_is_the_same_run() -> None:
    def digest(seed: int) -> Any:
        return Play(made_of(file("half", "duration_s=1", "warm_up_s=0", "cool_down_s=0", f"seed={seed}")))

    first, second, other = (digest(seed).run().digest for seed in (1, 1, 2))
    assert first == second != other
