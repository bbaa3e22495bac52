"""Who is believed to be well, in virtual time: probes, suspicion, ejection, return, rest, and a list that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest

from services.router.upstreams.call import Busy, Probe
from services.router.workers.fleet import Fleet
from services.router.workers.health import FAILURES, Health
from services.router.workers.prober import MAX_PROBES_PER_S, PIECES, PROBE_TIMEOUT_S, Prober
from services.router.workers.worker import Worker
from services.runtime.log import Log
from services.runtime.upstream import UpstreamError
from tests.router.fleetrig import FakeUpstream, asked, connect, probe, spec
from tests.virtual import run, stand_still

LOST = UpstreamError("connection reset")
GONE = UpstreamError("no connection: Connection refused", sent=False)


class Notes:
    """A log that is read."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def info(self, message: str, **fields: Any) -> None:
        self.lines.append((message, fields["worker"]))

    def warning(self, message: str, **fields: Any) -> None:
        self.lines.append((message, str(fields.get("worker", fields))))


class Watch:
    """A fleet of fakes under a prober. `tells[name]` is what a worker's probe finds: an announcement or an error."""

    def __init__(self, *names: str, interval_s: float = 1.0) -> None:
        self.tells: dict[str, Callable[[], Any]] = dict.fromkeys(names, probe)
        self.fleet = Fleet([self.make(name) for name in names], Random(1))
        self.notes = Notes()
        self.changes = 0
        self.fleet.on_change(self.count)
        self.prober = Prober(self.fleet, interval_s, cast(Log, self.notes), Random(2))

    def make(self, name: str) -> Worker:
        return Worker(spec(name), FakeUpstream(lambda: self.tells[name]()), max_limit=8)

    def count(self) -> None:
        self.changes += 1

    def worker(self, name: str) -> Worker:
        return next(worker for worker in self.fleet.workers if worker.name == name)

    def upstream(self, name: str) -> FakeUpstream:
        return cast(FakeUpstream, self.worker(name).upstream)

    def up(self) -> list[str]:
        return [worker.name for worker in self.fleet.workers if worker.live]

    def dies(self, name: str, how: Exception = GONE) -> None:
        self.tells[name] = lambda: how

    def hangs(self, name: str) -> None:
        self.tells[name] = asyncio.Event().wait

    def lives(self, name: str) -> None:
        self.tells[name] = probe


def watching(scenario: Callable[[Watch], Awaitable[None]], *names: str, interval_s: float = 1.0) -> None:
    async def main() -> None:
        watch = Watch(*names, interval_s=interval_s)
        await watch.prober.look_at_all()
        watch.prober.start()
        try:
            await scenario(watch)
        finally:
            await watch.prober.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert all(cast(FakeUpstream, worker.upstream).closed for worker in watch.fleet.workers)

    run(main())


# ---- probes


def test_workers_are_up_when_they_have_answered() -> None:
    async def scenario(watch: Watch) -> None:
        assert watch.up() == ["a", "b"]
        assert watch.notes.lines == [("worker up", "a"), ("worker up", "b")]
        await asyncio.sleep(30)
        assert len(watch.notes.lines) == 2  # no news, no line
        assert 25 <= watch.upstream("a").probes <= 35

    watching(scenario, "a", "b")


def test_one_missed_probe_keeps_new_requests_away_and_the_second_gives_up_what_is_unheard() -> None:
    async def scenario(watch: Watch) -> None:
        watch.hangs("a")
        await until(lambda: watch.up() == ["b"])
        assert not watch.upstream("a").gave_up
        missed_at = now()
        await until(lambda: watch.upstream("a").gave_up)
        assert now() - missed_at == pytest.approx(1.1)  # another look after 0.1 s, and its second
        watch.lives("a")
        await until(lambda: len(watch.up()) == 2)

    watching(scenario, "a", "b")


def test_a_server_that_answers_nothing_while_it_works_is_missed_only_when_it_is_idle() -> None:
    """llama-cpp-python computes a plain answer in one call, and answers no probe until it has ended."""

    async def scenario(watch: Watch) -> None:
        worker = watch.worker("a")
        worker.spec = worker.spec.model_copy(update={"answers_when_busy": False})
        worker.inflight = 1
        watch.hangs("a")
        await asyncio.sleep(20)
        assert watch.up() == ["a", "b"]
        worker.inflight = 0
        await until(lambda: watch.upstream("a").gave_up)

    watching(scenario, "a", "b")


def test_a_second_for_which_the_router_itself_stood_still_is_no_silence_of_a_workers() -> None:
    async def slow_after_a_stall() -> Probe:
        for _ in range(3):
            stand_still(0.98)
            await asyncio.sleep(0.2)
        return probe()

    async def scenario(watch: Watch) -> None:
        watch.tells["a"] = slow_after_a_stall
        probes = watch.upstream("a").probes
        await until(lambda: watch.upstream("a").probes > probes + 3)
        assert watch.notes.lines == [("worker up", "a")]

    watching(scenario, "a")


def test_a_worker_that_is_silent_is_found_out_also_by_a_router_that_stood_still() -> None:
    asked_at: list[float] = []

    async def silent() -> None:
        asked_at.append(now())
        stand_still(0.98)
        await asyncio.Event().wait()

    async def scenario(watch: Watch) -> None:
        watch.tells["a"] = silent
        await until(lambda: asked_at and not watch.up())
        piece_s = PROBE_TIMEOUT_S / PIECES
        assert now() - asked_at[0] == pytest.approx(0.98 - piece_s + PROBE_TIMEOUT_S, abs=0.011)
        await until(lambda: watch.upstream("a").gave_up)

    watching(scenario, "a")


def test_a_refused_connection_gives_up_at_once() -> None:
    async def scenario(watch: Watch) -> None:
        watch.dies("a")
        await until(lambda: watch.upstream("a").gave_up)
        assert watch.up() == ["b"]

    watching(scenario, "a", "b")


def test_a_probe_that_breaks_is_a_worker_that_does_not_answer_and_the_next_look_comes() -> None:
    async def scenario(watch: Watch) -> None:
        watch.dies("a", ValueError("unheard of"))
        await until(lambda: watch.up() == ["b"])
        await asyncio.sleep(5)
        watch.lives("a")
        await until(lambda: len(watch.up()) == 2)

    watching(scenario, "a", "b")


def test_a_worker_that_comes_back_is_seen_within_an_interval_however_long_it_was_gone() -> None:
    async def scenario(watch: Watch) -> None:
        for gone_s in (2, 20, 45, 600):
            watch.dies("a")
            await asyncio.sleep(gone_s)
            assert watch.up() == ["b"]
            watch.lives("a")
            back_at = now()
            await until(lambda: len(watch.up()) == 2)
            assert now() - back_at <= 1.2
            await asyncio.sleep(61)

    watching(scenario, "a", "b")


def test_a_worker_that_restarts_in_a_loop_comes_back_less_and_less_often() -> None:
    async def scenario(watch: Watch) -> None:
        returns: list[float] = []
        while now() < 600:
            watch.dies("a")
            await until(lambda: watch.up() == ["b"])
            watch.lives("a")
            await until(lambda: len(watch.up()) == 2)
            returns.append(now())
        gaps = [b - a for a, b in pairwise(returns)]
        assert gaps[0] < 4
        assert 29 < gaps[-1] < 34
        assert len(returns) < 30
        await asyncio.sleep(61)  # in good standing: forgiven
        watch.dies("a")
        await until(lambda: watch.up() == ["b"])
        watch.lives("a")
        back_at = now()
        await until(lambda: len(watch.up()) == 2)
        assert now() - back_at < 2.5

    watching(scenario, "a", "b")


def test_the_last_worker_of_a_model_is_not_kept_out_once_it_answers() -> None:
    async def scenario(watch: Watch) -> None:
        for _ in range(12):
            watch.dies("a")
            await until(lambda: not watch.up())
            watch.lives("a")
            back_at = now()
            await until(watch.up)
            assert now() - back_at <= 1.2

    watching(scenario, "a")


def test_an_ejection_ends_early_when_the_others_are_lost() -> None:
    async def scenario(watch: Watch) -> None:
        watch.worker("a").health.eject(now())
        watch.worker("a").health.ejected_until = now() + 30
        watch.fleet.looked(watch.worker("a"))
        watch.dies("b")
        await until(lambda: watch.up() == ["a"])
        assert now() < 3

    watching(scenario, "a", "b")


def test_probes_of_a_large_fleet_stay_few_and_spread() -> None:
    names = [f"w{number}" for number in range(256)]

    async def scenario(watch: Watch) -> None:
        await asyncio.sleep(10)
        before = sum(watch.upstream(name).probes for name in names)
        most = 0
        for _ in range(40):
            began = sum(watch.upstream(name).probes for name in names)
            await asyncio.sleep(1)
            most = max(most, sum(watch.upstream(name).probes for name in names) - began)
        each_s = (sum(watch.upstream(name).probes for name in names) - before) / 40
        assert each_s == pytest.approx(MAX_PROBES_PER_S, rel=0.05)
        assert most < 2 * MAX_PROBES_PER_S

    watching(scenario, *names)


def test_a_few_that_are_gone_from_a_large_fleet_are_looked_at_as_often_as_in_a_small_one() -> None:
    names = [f"w{number}" for number in range(256)]

    async def scenario(watch: Watch) -> None:
        watch.dies("w7")
        watch.prober.suspect(watch.worker("w7"), LOST)
        await asyncio.sleep(60)
        watch.lives("w7")
        back_at = now()
        await until(lambda: watch.worker("w7").live)
        assert now() - back_at <= 1.2

    watching(scenario, *names)


# ---- what requests meet


def test_a_suspect_gets_nothing_new_until_it_has_answered_a_probe() -> None:
    async def scenario(watch: Watch) -> None:
        await asyncio.sleep(5)
        watch.prober.suspect(watch.worker("a"), LOST)
        assert watch.up() == ["b"]
        suspected_at = now()
        await until(lambda: len(watch.up()) == 2)
        assert now() - suspected_at == pytest.approx(0.1, abs=0.011)
        assert not watch.upstream("a").gave_up

    watching(scenario, "a", "b", interval_s=60)


def test_however_many_requests_suspect_it_a_worker_is_looked_at_ten_times_a_second_at_most() -> None:
    async def scenario(watch: Watch) -> None:
        watch.dies("a")
        before = watch.upstream("a").probes
        for _ in range(1000):
            watch.prober.suspect(watch.worker("a"), LOST)
            await asyncio.sleep(0.01)
        assert watch.upstream("a").probes - before <= 101

    watching(scenario, "a", "b")


def test_one_that_answers_probes_and_fails_everything_is_ejected_and_tried_again_with_one_request() -> None:
    async def scenario(watch: Watch) -> None:
        worker, tries = watch.worker("a"), 0
        while now() < 120:
            if worker.live:
                watch.prober.failed(worker)
                tries += 1
            await asyncio.sleep(0.01)
        assert tries <= FAILURES + 8  # 5 to be found out, then one after 1, 2, 4, 8, 16, 30, 30, ... seconds
        worker.health.served()
        await until(lambda: worker.live)
        for _ in range(FAILURES - 1):
            watch.prober.failed(worker)
        assert worker.live

    watching(scenario, "a", "b")


def test_failures_must_come_in_a_row() -> None:
    async def scenario(watch: Watch) -> None:
        worker = watch.worker("a")
        for _ in range(50):
            for _ in range(FAILURES - 1):
                watch.prober.failed(worker)
            turn = asked()
            assert watch.fleet.take(turn, excluding=watch.worker("b")) is worker
            watch.fleet.give_back(worker, turn, served=True)
        assert worker.live

    watching(scenario, "a", "b")


def test_the_last_worker_of_a_model_is_never_ejected_for_what_its_requests_meet() -> None:
    async def scenario(watch: Watch) -> None:
        for name in ("a", "b"):
            for _ in range(3 * FAILURES):
                watch.prober.failed(watch.worker(name))
        assert watch.up() == ["b"]
        lines = len(watch.notes.lines)
        for _ in range(100):
            watch.prober.failed(watch.worker("b"))
        assert (watch.up(), len(watch.notes.lines)) == (["b"], lines)
        await until(lambda: len(watch.up()) == 2)
        watch.prober.failed(watch.worker("b"))  # now there is another one
        assert watch.up() == ["a"]

    watching(scenario, "a", "b")


def test_never_more_than_half_of_those_who_serve_a_model_are_ejected_as_outliers() -> None:
    async def scenario(watch: Watch) -> None:
        for _ in range(3):
            for worker in watch.fleet.workers:
                for _ in range(FAILURES):
                    watch.prober.failed(worker)
        assert len(watch.up()) == 3
        watch.dies("e")
        await until(lambda: len(watch.up()) == 4)  # one more is lost: those who are out come back

    watching(scenario, "a", "b", "c", "d", "e")


def test_connections_that_are_lost_count_as_failures_while_probes_succeed() -> None:
    async def scenario(watch: Watch) -> None:
        worker = watch.worker("a")
        for _ in range(FAILURES):
            watch.prober.suspect(worker, LOST)
            await asyncio.sleep(0.3)
        assert worker.health.ejections == 1

    watching(scenario, "a", "b")


@pytest.mark.parametrize(("said_ms", "rest_s"), [(300, 0.3), (0, 0.05), (3_600_000, 5)])
def test_one_that_refuses_rests_as_long_as_it_said_within_reason(said_ms: float, rest_s: float) -> None:
    async def scenario(watch: Watch) -> None:
        worker = watch.worker("a")
        changes = watch.changes
        watch.prober.refused(worker, Busy(said_ms))
        assert not watch.fleet.fits(asked())
        assert (watch.fleet.alive("m"), watch.fleet.slots("m"), watch.changes) == (True, 4, changes + 1)
        refused_at = now()
        await until(lambda: watch.fleet.fits(asked()))
        assert now() - refused_at == pytest.approx(rest_s, abs=0.011)
        assert watch.changes == changes + 2

    watching(scenario, "a")


def test_a_second_refusal_begins_the_rest_again() -> None:
    async def scenario(watch: Watch) -> None:
        worker = watch.worker("a")
        watch.prober.refused(worker, Busy(1000))
        await asyncio.sleep(0.9)
        watch.prober.refused(worker, Busy(1000))
        await asyncio.sleep(0.9)
        assert worker.resting
        await asyncio.sleep(0.2)
        assert not worker.resting

    watching(scenario, "a")


def test_one_that_says_it_is_leaving_gets_nothing_new_and_may_change_its_mind() -> None:
    async def scenario(watch: Watch) -> None:
        watch.prober.refused(watch.worker("a"), Busy(10, draining=True))
        assert watch.up() == ["b"]
        assert watch.notes.lines[-1] == ("worker draining", "a")
        await asyncio.sleep(1.2)
        assert watch.up() == ["a", "b"]

    watching(scenario, "a", "b")


# ---- a list that changes


def test_a_newcomer_is_looked_at_at_once() -> None:
    async def scenario(watch: Watch) -> None:
        await asyncio.sleep(10)
        watch.prober.reload([spec("a"), spec("new")], connect)
        assert watch.up() == ["a"]
        joined_at = now()
        await until(lambda: watch.up() == ["a", "new"])
        assert now() - joined_at <= 0.2

    watching(scenario, "a", interval_s=60)


def test_a_worker_that_leaves_is_looked_at_until_it_holds_nothing() -> None:
    async def scenario(watch: Watch) -> None:
        a, turn = watch.worker("a"), asked()
        assert watch.fleet.take(turn) is a
        upstream = watch.upstream("a")
        watch.prober.reload([spec("b")], connect)
        await asyncio.sleep(5)
        watch.dies("a")
        await until(lambda: upstream.gave_up)  # its requests are not left to hang
        watch.fleet.give_back(a, turn)
        await asyncio.sleep(2)
        probes = upstream.probes
        await asyncio.sleep(10)
        assert upstream.probes == probes
        assert upstream.closed
        assert ("worker removed", "a") in watch.notes.lines

    watching(scenario, "a", "b")


def test_reloading_again_and_again_leaves_no_task_behind() -> None:
    async def scenario(watch: Watch) -> None:
        for number in range(30):
            names = [f"w{number}", f"w{number + 1}", "a"]
            watch.prober.reload([spec(name) for name in names], connect)
            await asyncio.sleep(0.4)
        await asyncio.sleep(5)
        assert len(asyncio.all_tasks()) == 3 + 1

    watching(scenario, "a")


def test_what_an_announcement_lacks_is_said_once() -> None:
    async def scenario(watch: Watch) -> None:
        a = watch.worker("a")
        a.spec = spec("a", kind="weir", slots=None, models=())
        watch.tells["a"] = lambda: probe(models=tuple(f"model-{number}" for number in range(2000)))
        await asyncio.sleep(5)
        said = [line for line in watch.notes.lines if line[0].startswith("too many models")]
        assert len(said) == 1

    watching(scenario, "a")


# ---- the rules alone


def test_a_long_life_forgives_and_an_ejection_is_counted_once() -> None:
    health = Health()
    health.answered(0.0, needed=False)
    for _ in range(10):
        health.eject(10.0)  # ten requests failed at once
    assert (health.ejections, health.ejected_until) == (1, 11.0)
    health.answered(10.5, needed=False)
    assert not health.up
    health.answered(11.0, needed=False)
    health.eject(12.0)
    assert (health.ejections, health.ejected_until) == (2, 14.0)
    health.answered(14.0, needed=False)
    health.eject(80.0)
    assert (health.ejections, health.ejected_until) == (1, 81.0)
    assert repr(health) == "<Health down, 0 failures in a row, 1 ejections>"


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)
