"""What several routers need: each verdict green and red, and a look at workers and a store that are not there."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from services.cli.ports import free_port
from services.router.config import RouterSettings
from services.router.operating.sharedpool import Seen, look, verdicts
from services.router.several import examine, findings_of
from services.router.upstreams.weir import WeirUpstream
from services.runtime.log import Log
from tests.desk.rig import desked as with_desk
from tests.router.sharedrig import sharing
from tests.virtual import run

STORE = {"redis_version": "7.2.4", "role": "master", "maxmemory_policy": "noeviction"}
URL = "redis://user:sesame@10.0.0.30:6379/0"


def settings(**values: Any) -> RouterSettings:
    chosen = {"exchange_url": URL, "router_name": "r1", **values}
    return RouterSettings(_env_file=None, **chosen)  # type: ignore[call-arg]


class Case(NamedTuple):
    """What is different from a sound pool of two routers."""

    check: str
    severity: str
    says: str
    store: Mapping[str, Any] | str = STORE
    callers: Collection[str] | str = ("r0", "r1")
    runs_here: bool = True
    leases: Mapping[str, int | str] = {"w0": 405, "w1": 405}
    settings: Mapping[str, Any] = {}


CASES = [
    Case("exchange", "ok", "redis://10.0.0.30:6379/0: Redis 7.2.4"),
    Case("exchange", "ok", "Valkey 8.1.1", store={**STORE, "valkey_version": "8.1.1"}),
    Case("exchange", "ok", "Redis 5.0", store={**STORE, "redis_version": 5.0}),
    Case("exchange", "fail", "Redis 4.0.14", store={**STORE, "redis_version": "4.0.14"}),
    Case("exchange", "fail", "a replica", store={**STORE, "role": "slave"}),
    Case("exchange", "fail", "Timeout", store="Timeout", callers="the store does not answer"),
    Case("exchange memory", "ok", "noeviction"),
    Case("exchange memory", "warn", "allkeys-lru", store={**STORE, "maxmemory_policy": "allkeys-lru"}),
    Case("router name", "ok", "r1; beside r0"),
    Case("router name", "ok", "no other router calls the exchange", callers=()),
    Case("router name", "ok", "r1; beside r0", callers=("r0",), runs_here=False),
    Case("router name", "fail", "one with this name calls the exchange; beside r0", runs_here=False),
    Case("router name", "fail", "no other router", callers=("r1",), runs_here=False),
    Case("router name", "fail", "", callers=("r1-3",), runs_here=False, settings={"router_processes": 4}),
    Case("router name", "ok", "beside r0, r1", runs_here=False, settings={"router_processes": 4}),
    Case("router name", "ok", "the host's name", settings={"router_name": ""}),
    Case("router name", "skip", "the store does not answer", callers="the store does not answer"),
    Case("leases", "ok", "2 of 2 Weir workers lend"),
    Case("leases", "fail", "w1: 404 to /lease, older than leases", leases={"w0": 405, "w1": 404}),
    Case("leases", "fail", "w0 (401), w1 (it hung up)", leases={"w0": 401, "w1": "it hung up"}),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.check} {case.severity} {case.says}" for case in CASES])
def test_each_verdict(case: Case) -> None:
    seen = Seen(case.store, case.callers, case.runs_here, case.leases)
    found = next(
        each
        for each in verdicts(settings(**case.settings), seen)
        if (each.check, each.severity) == (case.check, case.severity)
    )
    assert case.says in found.seen
    assert bool(found.why and found.remedy) is (case.severity in ("warn", "fail"))


def test_no_finding_shows_the_password_of_the_store() -> None:
    for store in (STORE, "no answer"):
        for found in verdicts(settings(), Seen(store, (), True, {})):
            assert "sesame" not in f"{found}"


def test_workers_that_do_not_lend_are_told_apart_from_those_that_do() -> None:
    found = verdicts(settings(), Seen(STORE, (), True, {"w0": 405, "w1": 404, "w2": "it hung up"}))
    of_leases = [(each.severity, each.seen) for each in found if each.check == "leases"]
    assert of_leases == [
        ("fail", "w1: 404 to /lease, older than leases"),
        ("fail", "w2 (it hung up)"),
        ("ok", "1 of 3 Weir workers lend"),
    ]


def test_slots_of_other_servers_without_a_desk_are_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(
        "workers:\n"
        "  - {name: w0, kind: weir, url: 'http://w0'}\n"
        "  - {name: gpu-0, kind: openai, url: 'http://g0/v1', slots: 16}\n"
        "  - {name: gpu-1, kind: openai, url: 'http://g1/v1', slots: auto}\n"
    )
    found = verdicts(settings(workers_file=file), Seen(STORE, (), True, {"w0": 405}))
    learned, fixed = [each for each in found if each.check == "other servers"]
    assert (fixed.severity, fixed.seen) == ("warn", "gpu-0 (slots: 16)")
    assert "divided by the number of routers" in fixed.remedy
    assert (learned.severity, learned.seen) == ("warn", "gpu-1 (slots: auto)")
    assert "a limit of its own" in learned.why
    alone = verdicts(settings(), Seen(STORE, (), True, {"w0": 405}))
    assert "other servers" not in [each.check for each in alone]


def desked(tmp_path: Path) -> RouterSettings:
    file = tmp_path / "workers.yaml"
    file.write_text(
        "workers:\n"
        "  - {name: w0, kind: weir, url: 'http://w0'}\n"
        "  - {name: gpu-0, kind: openai, url: 'http://g0/v1', desk: 'http://me:sesame@d/gpu-0'}\n"
        "  - {name: gpu-1, kind: openai, url: 'http://g1/v1', desk: 'http://d/gpu-1'}\n"
    )
    return settings(workers_file=file)


def test_a_desk_that_is_dead_or_does_not_know_its_server_is_told_apart_from_one_that_lends(tmp_path: Path) -> None:
    chosen = desked(tmp_path)
    found = verdicts(chosen, Seen(STORE, (), True, {"w0": 405, "gpu-0": "refused", "gpu-1": 404}))
    assert [(each.severity, each.seen) for each in found if each.check in ("leases", "desk", "other servers")] == [
        ("ok", "1 of 1 Weir workers lend"),
        ("fail", "gpu-1 (http://d/gpu-1): 404, not in DESK_SERVERS"),
        ("fail", "gpu-0 (http://d/gpu-0: refused)"),
    ]
    found = verdicts(chosen, Seen(STORE, (), True, {"w0": 405, "gpu-0": 405, "gpu-1": 405}))
    assert [each.seen for each in found if each.check == "desk"] == ["slots of 2 of 2 servers are lent by a desk"]


def test_a_router_that_is_alone_has_no_findings() -> None:
    assert asyncio.run(findings_of(settings(exchange_url=""))) == []


def test_settings_that_cannot_be_used_are_the_only_finding() -> None:
    (found,) = examine(lambda: settings(default_slo_ms=1000, max_deadline_ms=10))
    assert (found.check, found.severity) == ("settings", "fail")
    assert "DEFAULT_SLO_MS exceeds MAX_DEADLINE_MS" in found.seen


def test_a_worker_that_lends_says_so_without_lending_anything() -> None:
    async def main() -> None:
        async with sharing(routers=1, workers=1) as shared:
            (worker,) = shared.routers[0].dispatcher.fleet.workers
            assert isinstance(worker.upstream, WeirUpstream)
            before = [lease.router for lease in shared.workers[0].lending.book.leases()]
            assert await worker.upstream.lease_status() == 405
            assert [lease.router for lease in shared.workers[0].lending.book.leases()] == before

    run(main())


def test_a_desk_says_that_it_lends_without_lending_anything() -> None:
    async def main() -> None:
        async with with_desk() as made:
            (worker,) = made.routers[0].dispatcher.fleet.workers
            assert await worker.upstream.lease_status() == 405  # type: ignore[attr-defined]

    run(main())


@pytest.mark.sockets
def test_a_store_workers_and_desks_that_are_not_there_are_findings_and_not_tracebacks(tmp_path: Path) -> None:
    store, worker, router = (free_port() for _ in range(3))
    at = f"http://127.0.0.1:{worker}"
    (tmp_path / "workers.yaml").write_text(
        f"workers:\n  - {{name: a, kind: weir, url: '{at}'}}\n"
        f"  - {{name: b, kind: openai, url: '{at}/v1', desk: '{at}/b'}}\n"
    )
    chosen = settings(
        exchange_url=f"redis://127.0.0.1:{store}/0", workers_file=tmp_path / "workers.yaml", router_port=router
    )
    seen = asyncio.run(look(chosen, Log("router", "ERROR", io.BytesIO(), threaded=False)))
    assert not seen.runs_here
    assert isinstance(seen.store, str)
    assert [type(answer) for answer in seen.leases.values()] == [str, str]
    levels = {found.check: found.severity for found in verdicts(chosen, seen)}
    assert levels == {"exchange": "fail", "router name": "skip", "leases": "fail", "desk": "fail"}
