"""The page of a run: its verdict, its tables, and a missed target that is told as missed."""

from __future__ import annotations

from dataclasses import replace

from loadtests.judging.answers import Verdict
from loadtests.report.result import markdown
from loadtests.runs.judged import has_held
from loadtests.runs.many.addresses import net_of
from loadtests.runs.many.report import result
from loadtests.runs.many.sizes import QUICK
from loadtests.runs.many.stand import Secrets, router_settings, store_settings, worker_settings, workers_file
from loadtests.runs.many.tenants import tenants_file
from services.router.config import RouterSettings
from services.worker.config import WorkerSettings
from tests.loadtests.runs.many.made_up import entry, observed
from tests.loadtests.runs.many.test_many_slots import full

SIZES = replace(QUICK, requests=1)


def test_the_page_tells_the_verdict_and_every_target() -> None:
    run = full()
    run.still = lambda begin, end: 60.0  # its requests are open for longer than their deadline
    found = result(run, SIZES)
    assert has_held(found), found
    page = markdown(found, command="make many", machine="a machine")
    assert "**11 requests, 1 faults: 0 lost, 0 answered twice, 0 foreign, 0 wrong, 0 hung. Held.**" in page
    assert "| router killed and restarted | 1 | 100.00 % |" in page
    assert "| gold | 4 |" in page
    assert "Breaches" not in page


def test_a_loss_is_told_as_missed_and_named() -> None:
    run = full()
    run.entries = [*run.entries, entry(Verdict.DROPPED, id="b", sent_s=25.0, ended_s=26.0)]
    found = result(run, SIZES)
    assert not has_held(found)
    page = markdown(found, command="make many", machine="a machine")
    assert "1 lost" in page
    assert "| lost: no end, or a failure without a fault | 1 | ≤ 0 | **missed** |" in page
    assert "- lost: no end, or a failure without a fault: b of gold at router-0" in page


def test_an_empty_run_is_a_page_that_has_not_held() -> None:
    found = result(observed(), SIZES)
    assert not has_held(found)
    assert markdown(found, command="make many", machine="a machine")


def test_the_services_start_with_these_settings(tmp_path, monkeypatch) -> None:
    """Each is read by the service's own reader, which refuses listeners without a token and files with faults."""
    net, own = net_of(2, 2), Secrets.new()
    (tmp_path / "workers.yaml").write_text(workers_file(net), encoding="utf-8")
    (tmp_path / "tenants.yaml").write_text(tenants_file(), encoding="utf-8")
    for name, value in router_settings(net, net.routers[1], own, tmp_path).items():
        monkeypatch.setenv(name, value)
    router = RouterSettings(_env_file=None)
    assert (router.host, router.own_name, router.router_port) == ("10.77.0.11", "router-1", 8000)
    assert [spec.url for spec in router.worker_specs()] == ["http://10.77.0.50:8010", "http://10.77.0.51:8010"]
    assert router.exchange_url == f"redis://:{own.password}@10.77.0.90:6379/0"
    for name, value in worker_settings(net.workers[0], own, SIZES, 0).items():
        monkeypatch.setenv(name, value)
    worker = WorkerSettings(_env_file=None)
    assert (worker.host, worker.max_batch_size, worker.log_level) == ("10.77.0.50", SIZES.slots, "DEBUG")
    assert "bind 10.77.0.90\n" in store_settings(net.store, own, tmp_path)
    assert "maxmemory-policy noeviction" in store_settings(net.store, own, tmp_path)


def test_the_page_tells_why_slots_were_idle() -> None:
    page = markdown(result(full(10.0), SIZES), command="make many", machine="a machine")
    assert "## Slots that were idle" in page
    assert "- router killed and restarted, router-0: 0.0% in use" in page
    held = markdown(result(full(), SIZES), command="make many", machine="a machine")
    assert "## Slots that were idle" not in held
