"""Who gets a request: by what is held, by what is announced, by who served the like before."""

from __future__ import annotations

from random import Random

import pytest

from services.router.parsing.fields import Servers
from services.router.upstreams.call import Probe
from services.router.workers.fleet import CHOICES, MAX_POOLED, MAX_PREFIXES, Fleet
from services.router.workers.worker import Worker
from tests.router.fleetrig import FakeUpstream, asked, connect, fleet_of, probe, spec, worker


def loads(fleet: Fleet) -> list[float]:
    return [one.work_tokens for one in fleet.workers]


# ---- choosing


def test_the_worker_with_the_least_outstanding_work_is_chosen_and_not_the_one_with_the_fewest_requests() -> None:
    fleet = fleet_of(worker("a", slots=8), worker("b", slots=8))
    fleet.take(asked(work=900))
    assert [fleet.take(asked(work=100)).name for _ in range(5)] == ["b"] * 5  # type: ignore[union-attr]
    assert loads(fleet) == [900, 500]


def test_work_is_weighed_per_slot() -> None:
    fleet = fleet_of(worker("small", slots=2), worker("big", slots=8))
    for _ in range(10):
        assert fleet.take(asked(work=10))
    assert [one.inflight for one in fleet.workers] == [2, 8]
    assert not fleet.fits(asked())


def test_among_equals_the_longest_unused_is_chosen() -> None:
    fleet = fleet_of(*(worker(name, slots=4) for name in "abc"))
    assert [fleet.take(asked(work=7)).name for _ in range(6)] == list("abcabc")  # type: ignore[union-attr]


def test_a_look_ahead_place_is_used_only_when_no_slot_is_free() -> None:
    fleet = fleet_of(worker("a", slots=1, lookahead=1), worker("b", slots=2))
    taken = [fleet.take(asked(work=work)) for work in (1, 500, 500, 1)]
    assert [one.name for one in taken if one] == ["a", "b", "b", "a"]
    assert fleet.take(asked()) is None


def test_a_prompt_goes_where_its_beginning_was_served_last_if_that_costs_at_most_one_request() -> None:
    fleet = fleet_of(worker("a", slots=64), worker("b", slots=64))
    first = fleet.take(asked(work=100, affinity=7))
    again = fleet.take(asked(work=100, affinity=7))
    assert first is again  # 100 against 0: within one request
    other = fleet.take(asked(work=100, affinity=7))
    assert other is not first  # 200 against 0 is not
    assert loads(fleet) == [200, 100]
    assert fleet.take(asked(work=100, affinity=7)) is other  # who now served it last; 100 against 200


def test_affinity_never_costs_more_than_one_request_of_imbalance() -> None:
    fleet, rng = fleet_of(*(worker(str(i), slots=500) for i in range(6))), Random(3)
    largest = 0.0
    for _ in range(1000):
        work = rng.uniform(1, 1000)
        largest = max(largest, work)
        fleet.take(asked(work=work, affinity=rng.randrange(1, 4)))
        assert max(loads(fleet)) - min(loads(fleet)) <= largest + max(1.0, largest)


def test_affinity_is_per_model_and_never_leads_to_a_full_or_dead_worker() -> None:
    a, b = worker("a", slots=1, models=("m", "n")), worker("b", slots=9, models=("m", "n"))
    fleet = fleet_of(a, b)
    assert fleet.take(asked(affinity=5)) is a
    assert fleet.take(asked(affinity=5)) is b  # a is full
    assert fleet.take(asked(affinity=5)) is b
    b.health.suspect()
    fleet.looked(b)
    assert fleet.take(asked(affinity=5)) is None


def test_what_is_remembered_of_prefixes_is_bounded() -> None:
    fleet = fleet_of(worker("a", slots=10), worker("b", slots=10))
    for number in range(1, MAX_PREFIXES + 500):
        turn = asked(affinity=number)
        taken = fleet.take(turn)
        assert taken
        fleet.give_back(taken, turn)
    assert len(fleet._lasts) == MAX_PREFIXES
    assert ("m", 1) not in fleet._lasts


def test_in_a_large_fleet_two_choices_keep_the_work_level() -> None:
    fleet = fleet_of(*(worker(str(i), slots=100) for i in range(10 * CHOICES)))
    for _ in range(2000):
        fleet.take(asked(work=1))
    assert max(loads(fleet)) <= 25 + 5  # log log n above the mean; chance alone would give twice that
    assert sum(loads(fleet)) == 2000


def test_in_a_large_fleet_the_only_worker_with_room_is_found() -> None:
    fleet = fleet_of(*(worker(str(i), slots=4, kv_tokens=100) for i in range(3 * CHOICES)))
    for one in fleet.workers[:-1]:
        one.kv_held_tokens = 100
    turn = asked(prompt=50, answer=40)
    assert fleet.fits(turn)
    assert fleet.take(turn) is fleet.workers[-1]
    assert not fleet.fits(asked(prompt=50, answer=40))


# ---- memory


def test_prompts_and_longest_answers_stay_within_the_announced_memory() -> None:
    fleet = fleet_of(worker("a", slots=8, kv_tokens=1000))
    first, second = asked(prompt=300, answer=300), asked(prompt=200, answer=200)
    assert fleet.take(first)
    assert fleet.take(second)
    assert not fleet.fits(asked(prompt=1, answer=0))
    fleet.give_back(fleet.workers[0], first)
    assert fleet.workers[0].kv_held_tokens == 400
    assert fleet.fits(asked(prompt=300, answer=300))
    assert not fleet.fits(asked(prompt=300, answer=301))


def test_a_granted_answer_weighs_what_was_granted() -> None:
    fleet = fleet_of(worker("a", slots=8, kv_tokens=1000))
    turn = asked(prompt=500, answer=2000)
    turn.granted_tokens = 100
    assert fleet.take(turn)
    assert fleet.workers[0].kv_held_tokens == 600
    turn.granted_tokens, turn.prompt_tokens, turn.charge_tokens = 7, 7, 7.0  # counted and settled meanwhile
    fleet.give_back(fleet.workers[0], turn)
    assert (fleet.workers[0].kv_held_tokens, fleet.workers[0].work_tokens) == (0, 0.0)


def test_what_fits_is_taken_whatever_was_granted_in_between() -> None:
    fleet = fleet_of(worker("a", slots=8, kv_tokens=100))
    assert fleet.take(asked(prompt=50, answer=40))
    turn = asked(prompt=30, answer=100)  # more than the worker has: it would be sent for it to refuse
    assert fleet.fits(turn)
    turn.granted_tokens = 20  # now it could fit, and does not
    assert fleet.take(turn)


def test_what_could_never_fit_anywhere_is_sent_for_the_worker_to_refuse() -> None:
    small, large = worker("small", slots=2, kv_tokens=100), worker("large", slots=2, kv_tokens=1000)
    fleet = fleet_of(small, large)
    assert fleet.take(asked(prompt=500, answer=400)) is large
    assert not fleet.fits(asked(prompt=500, answer=400))  # it would fit in time: it waits
    assert fleet.fits(asked(prompt=5000, answer=1))  # it never would
    unknown = fleet_of(worker("a", slots=2, kv_tokens=100), worker("b", slots=2))
    assert unknown.take(asked(prompt=5000, answer=1)) is unknown.workers[1]


# ---- pools


def test_models_that_share_a_worker_share_a_pool() -> None:
    fleet = fleet_of(worker("a", models=("x", "y")), worker("b", models=("y", "z")), worker("c", models=("q",)))
    assert [fleet.pool_of(model) for model in ("x", "y", "z", "q", "?")] == ["x", "x", "x", "q", None]
    assert (fleet.models, fleet.pools) == (["x", "y", "z", "q"], ["x", "q"])
    assert (fleet.slots("x"), fleet.slots("q")) == (8, 4)


def test_a_model_keeps_its_pool_and_a_worker_that_bridges_two_counts_in_both() -> None:
    a, b = worker("a", kind="weir", slots=None, models=()), worker("b", kind="weir", slots=None, models=())
    fleet = fleet_of(a, b)
    fleet.learn(a, probe(models=("x",)))
    fleet.learn(b, probe(models=("y",)))
    assert fleet.pools == ["x", "y"]
    fleet.learn(b, probe(models=("x", "y", "new")))
    assert [fleet.pool_of(model) for model in ("x", "y", "new")] == ["x", "y", "x"]
    assert (fleet.slots("x"), fleet.slots("y")) == (8, 4)
    fleet.learn(a, probe(models=("other",)))
    assert fleet.pool_of("other") == "other"
    assert fleet.slots("x") == 4


def test_a_worker_serves_only_the_models_that_it_has() -> None:
    fleet = fleet_of(worker("a", slots=1, models=("x",)), worker("b", slots=9, models=("x", "y")))
    assert fleet.take(asked(model="y")) is fleet.workers[1]
    assert fleet.take(asked(model="z")) is None
    assert not fleet.fits(asked(model="z"))
    assert fleet.alive("y", excluding=fleet.workers[0])
    assert not fleet.alive("y", excluding=fleet.workers[1])
    assert fleet.serving("x") == frozenset(fleet.workers)


def test_models_beyond_a_bound_are_not_served_and_counted() -> None:
    fleet = fleet_of(*(worker(str(i), models=tuple(f"{i}-{j}" for j in range(200))) for i in range(6)))
    assert (len(fleet.models), fleet.unpooled) == (MAX_POOLED, 1200 - MAX_POOLED)
    assert fleet.take(asked(model="5-199")) is None
    assert fleet.pool_of("5-199") is None


def test_models_that_the_same_workers_serve_share_a_line() -> None:
    many = tuple(f"m{number}" for number in range(200))
    fleet = fleet_of(worker("a", models=many), worker("b", models=(*many, "extra")))
    assert len({id(line) for line in fleet._candidates.values()}) == 2
    assert len(fleet._candidates_of[fleet.workers[1]]) == 2
    assert fleet.take(asked(model="extra")) is fleet.workers[1]


def test_a_pace_that_is_no_pace_is_not_heard() -> None:
    fleet = fleet_of(worker("a", slots="auto"))
    for pace in (0.0, -1.0, float("nan"), float("inf")):
        turn = asked()
        fleet.take(turn)
        fleet.give_back(fleet.workers[0], turn, pace=pace)
    assert fleet.workers[0].limit
    assert fleet.workers[0].limit.inflight == 0


def test_room_is_known_without_looking_at_every_worker() -> None:
    a, b = worker("a", slots=1, models=("x",)), worker("b", slots=1, models=("x", "y"))
    fleet = fleet_of(a, b)
    first, second = asked(model="y"), asked(model="x")
    assert fleet.take(first) is b
    assert fleet.room("x")  # a has a slot, though not for y
    assert not fleet.fits(asked(model="y"))
    assert fleet.take(second) is a
    assert not fleet.room("x")
    fleet.give_back(b, first)
    assert fleet.room("x")
    assert not fleet.room("nowhere")


# ---- the ledger


def test_a_place_is_given_back_once() -> None:
    fleet = fleet_of(worker("a"))
    turn = asked()
    taken = fleet.take(turn)
    assert taken
    fleet.give_back(taken, turn)
    with pytest.raises(RuntimeError, match="given back twice"):
        fleet.give_back(taken, turn)
    with pytest.raises(RuntimeError, match="never taken"):
        fleet.give_back(taken, asked())
    assert (taken.inflight, taken.work_tokens) == (0, 0.0)


def test_an_idle_worker_has_no_work_left_over_from_rounding() -> None:
    fleet = fleet_of(worker("a", slots=9))
    turns = [asked(work=1 + 0.1 * number) for number in range(9)]
    for turn in turns:
        fleet.take(turn)
    for turn in turns[::-1][3:] + turns[::-1][:3]:
        fleet.give_back(fleet.workers[0], turn)
    assert fleet.workers[0].work_tokens == 0.0


def test_a_request_cannot_hold_two_places_at_one_worker() -> None:
    fleet = fleet_of(worker("a"))
    turn = asked()
    fleet.take(turn)
    with pytest.raises(RuntimeError, match="already"):
        fleet.take(turn)
    assert fleet.workers[0].inflight == 1


def test_a_worker_that_is_excluded_draining_resting_or_down_is_passed_over() -> None:
    a, b = worker("a"), worker("b")
    fleet = fleet_of(a, b)
    assert fleet.take(asked(), excluding=a) is b
    a.draining = True
    fleet.looked(a)
    assert fleet.take(asked()) is b
    assert not fleet.fits(asked(), excluding=b)
    b.resting = True
    fleet.looked(b)
    assert fleet.take(asked()) is None
    assert fleet.alive("m")  # a rest is short: it still counts
    assert fleet.slots("m") == 4
    b.resting = False
    b.health.suspect()
    fleet.looked(b)
    assert (fleet.alive("m"), fleet.slots("m")) == (False, 0)


def test_slots_that_shrink_take_nothing_back_and_let_nothing_in() -> None:
    a = worker("a", slots=None, kind="weir", models=())
    fleet = fleet_of(a)
    fleet.learn(a, probe(slots=4))
    turns = [asked() for _ in range(4)]
    assert all(fleet.take(turn) for turn in turns)
    fleet.learn(a, probe(slots=2))
    for turn in turns[:2]:
        assert not fleet.fits(asked())
        fleet.give_back(a, turn)
    assert not fleet.fits(asked())
    fleet.give_back(a, turns[2])
    assert fleet.fits(asked())


# ---- who hears of it


def test_the_dispatcher_hears_of_every_change_and_of_nothing_else() -> None:
    a = worker("a", slots=None, kind="weir", models=())
    fleet, heard = fleet_of(a), []
    fleet.on_change(lambda: heard.append((fleet.slots("m"), fleet.alive("m"), list(fleet.models))))
    fleet.learn(a, probe(slots=4))
    fleet.learn(a, probe(slots=4))  # nothing new
    fleet.looked(a)
    turn = asked()
    fleet.take(turn)
    fleet.give_back(a, turn)
    assert heard == [(4, True, ["m"])]
    fleet.learn(a, probe(slots=6))
    fleet.learn(a, probe(slots=6, draining=True))
    fleet.learn(a, probe(slots=6))
    fleet.learn(a, probe(slots=6, models=("m", "n")))
    fleet.learn(a, probe(slots=6, models=("m", "n"), kv_tokens=99))
    a.health.suspect()
    fleet.looked(a)
    assert [slots for slots, _, _ in heard[1:]] == [6, 0, 6, 6, 6, 0]


# ---- members that come and go


def test_a_worker_that_leaves_finishes_what_it_holds_and_is_then_closed() -> None:
    fleet = fleet_of(worker("a"), worker("b"))
    a, heard = fleet.workers[0], []
    fleet.on_change(lambda: heard.append(fleet.slots("m")))
    turn, second = asked(affinity=3), asked(affinity=3)
    assert fleet.take(turn) is fleet.take(second) is a
    fleet.reload([spec("b")], connect)
    assert heard == [4]
    assert (fleet.leaving, [one.name for one in fleet.workers]) == ([a], ["b"])
    assert fleet.take(asked(affinity=3)) is fleet.workers[0]
    fleet.give_back(a, second)
    assert not a.upstream.closed  # type: ignore[attr-defined]  # a fake
    fleet.give_back(a, turn)
    assert (fleet.leaving, a.upstream.closed) == ([], True)  # type: ignore[attr-defined]


def test_a_worker_that_stays_keeps_what_it_holds_and_what_is_known_of_it() -> None:
    fleet = fleet_of(worker("a", slots=4), worker("b"))
    a, before = fleet.workers[0], fleet.workers[0].upstream
    turns = [asked() for _ in range(4)]
    for turn in turns:
        fleet.take(turn, excluding=fleet.workers[1])
    fleet.reload([spec("b"), spec("a", slots=2, lookahead=1)], connect)
    assert fleet.workers[1] is a
    assert a.healthy
    assert (a.inflight, a.slots, a.places) == (4, 2, 3)
    assert before.closed  # type: ignore[attr-defined]  # a fake; the new one has the new key
    assert not fleet.fits(asked(), excluding=fleet.workers[0])
    for turn in turns:
        fleet.give_back(a, turn)
    assert fleet.fits(asked(), excluding=fleet.workers[0])


def test_an_entry_that_did_not_change_is_left_alone() -> None:
    fleet = fleet_of(worker("a"))
    before = fleet.workers[0].upstream
    fleet.reload([spec("a"), spec("c", models=("new",))], connect)
    assert fleet.workers[0].upstream is before
    assert fleet.models == ["m", "new"]
    assert not fleet.alive("new")  # nobody has looked at it


def test_a_worker_that_moves_is_another_one_of_the_same_name() -> None:
    fleet = fleet_of(worker("a"))
    old, turn = fleet.workers[0], asked()
    fleet.take(turn)
    fleet.reload([spec("a", url="http://elsewhere")], connect)
    assert fleet.workers[0] is not old
    assert fleet.leaving == [old]
    assert not fleet.workers[0].healthy
    fleet.give_back(old, turn)
    assert fleet.leaving == []


def test_a_worker_that_leaves_cannot_come_back_into_line_by_a_probe() -> None:
    fleet = fleet_of(worker("a"), worker("b"))
    a, turn = fleet.workers[0], asked()
    fleet.take(turn)
    fleet.reload([spec("b")], connect)
    fleet.learn(a, probe(slots=9))
    fleet.learn(a, Probe(9, ("m", "n")))
    assert fleet.slots("m") == 4
    assert a not in fleet.serving("m")
    assert fleet.models == ["m"]


# ---- learned limits


def test_a_learned_limit_is_the_slots_and_its_move_is_told() -> None:
    fleet, heard = fleet_of(worker("a", slots="auto", most=8)), []
    a = fleet.workers[0]
    fleet.on_change(lambda: heard.append(fleet.slots("m")))
    assert a.slots == 1
    for _ in range(200):
        turns = [asked() for _ in range(a.slots)]
        for turn in turns:
            assert fleet.take(turn) is a
        assert not fleet.fits(asked())
        for turn in turns:
            fleet.give_back(a, turn, pace=0.01, served=True)
    assert heard == sorted(heard)
    assert (heard[0], heard[-1], a.slots) == (2, 8, 8)


def test_a_refusal_makes_a_learned_limit_smaller() -> None:
    fleet = fleet_of(worker("a", slots="auto", most=64))
    a = fleet.workers[0]
    assert a.limit
    a.limit._move(40.0)
    a.slots = a.limit.cap
    fleet.looked(a)
    turn = asked()
    fleet.take(turn)
    fleet.give_back(a, turn, overloaded=True)
    assert a.slots == fleet.slots("m") == 36


def test_an_entry_may_change_between_announced_and_learned_slots_while_requests_run() -> None:
    fleet = fleet_of(worker("a", slots=4, most=8))
    a, turns = fleet.workers[0], [asked() for _ in range(3)]
    for turn in turns:
        fleet.take(turn)
    fleet.reload([spec("a", slots="auto")], connect)
    assert (a.slots, a.inflight) == (1, 3)
    for turn in turns[:2]:
        fleet.give_back(a, turn, pace=0.1)
        assert not fleet.fits(asked())
    fleet.give_back(a, turns[2], pace=0.1)
    assert fleet.take(asked()) is a
    fleet.reload([spec("a", slots=2)], connect)
    assert (a.limit, a.slots, a.inflight) == (None, 2, 1)


def test_a_worker_says_how_it_stands() -> None:
    one = Worker(spec("a", slots=4), FakeUpstream())
    assert repr(one) == "<Worker a down, 0/4+0, 0 tokens>"
    fleet = fleet_of(worker("a", slots=4, lookahead=1))
    fleet.take(asked(work=30))
    assert repr(fleet.workers[0]) == "<Worker a up, 1/4+1, 30 tokens>"
    assert repr(fleet) == "<Fleet 1/1 live, 0 leaving, pools ['m']>"


def test_a_field_is_allowed_for_a_model_if_every_server_that_may_serve_it_allows_it() -> None:
    both = worker("a", allow=["priority", "store"], models=("m", "n"))
    fleet = fleet_of(both, worker("b", allow=["priority"]), worker("w", kind="weir", slots=None, models=()))
    assert fleet.servers("m") == Servers(allow=frozenset({"priority"}))
    assert fleet.servers("n") == Servers(allow=frozenset({"priority", "store"}))
    assert fleet.servers("nobody's") == Servers()
    fleet.workers[1].health.suspect()
    fleet.looked(fleet.workers[1])
    assert fleet.servers("m").allow == {"priority"}, "it may be back before the request is sent"


def test_where_weir_workers_serve_a_model_a_request_is_judged_for_them_too() -> None:
    fleet = fleet_of(own := worker("w", kind="weir", slots=None, models=()))
    fleet.learn(own, probe(4))
    assert fleet.servers("m") == Servers(weir=True, allow=None)
    mixed = fleet_of(worker("a", allow=["store"]), own := worker("w", kind="weir", slots=None, models=()))
    mixed.learn(own, probe(4))
    assert mixed.servers("m") == Servers(weir=True, allow=frozenset({"store"}))


def test_a_server_whose_desk_moves_is_another_worker() -> None:
    before = spec("a", slots=None, desk="http://d/a")
    fleet = Fleet([connect(before)], Random(1))
    (old,) = fleet.workers
    fleet.reload([before], connect)
    assert fleet.workers == [old]
    fleet.reload([spec("a", slots=None, desk="http://e/a")], connect)
    (new,) = fleet.workers
    assert new is not old
    assert new.lease_name != old.lease_name
