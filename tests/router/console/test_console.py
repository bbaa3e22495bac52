"""The console's routes on a real router: totals that equal /metrics, whole lives, and who may see and change what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from pydantic import SecretStr

from services.contracts.console import Frame, Hello, RequestLife
from services.contracts.generate import GenerateRequest
from services.core.outcome import Outcome
from services.router.telemetry.journal import Journal
from services.runtime.http import Exchange
from tests.router.rig import FakeRetrieval, FakeWorker, Stand, answer, error_of, hang, passage, standing, then
from tests.router.tenancy.test_identity import as_tenant, entry, listed
from tests.runtime.rig import until
from tests.virtual import run

ROUTES = ("/console", "/console/", "/console/static/index.html", "/console/events", "/console/requests/r")
OURS = {"x-weir-console": "1"}


@asynccontextmanager
async def watching(client: httpx2.AsyncClient, **headers: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """The stream of a viewer, as (event, data)."""
    async with client.stream("GET", "/console/events", headers=headers) as response:
        assert response.status_code == 200

        async def events() -> AsyncIterator[tuple[str, Any]]:
            name = ""
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    yield name, msgspec.json.decode(line[6:], type=Hello if name == "hello" else Frame)

        yield events()


async def frame(client: httpx2.AsyncClient, **headers: str) -> Frame:
    """The picture at this moment."""
    async with watching(client, **headers) as events:
        async for _, data in events:
            if isinstance(data, Frame):
                return data
    raise AssertionError("the stream ended before its first frame")


async def life(stand: Stand, id: str) -> RequestLife:
    found = await stand.client.get(f"/console/requests/{id}")
    assert found.status_code == 200, found.text
    return msgspec.json.decode(found.content, type=RequestLife)


def whats(told: RequestLife) -> list[str]:
    return [moment.what for moment in told.timeline]


async def summed(stand: Stand, name: str, label: str) -> dict[str, float]:
    """A counter by one of its labels, over the others."""
    found: dict[str, float] = {}
    for labels, value in await stand.samples(name):
        key = labels.split(f'{label}="')[1].split('"')[0]
        found[key] = found.get(key, 0.0) + value
    return found


def test_a_stream_begins_with_what_is_here_and_goes_on_with_frames() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand, watching(stand.client) as events:
            name, hello = await anext(events)
            assert (name, hello.lab, hello.frame_ms, hello.tenants_bound) == ("hello", True, 200, 24)
            assert (hello.policy, hello.storm) == (True, False)
            seen = [data.seq for _, data in [await anext(events) for _ in range(3)]]
            assert seen == [1, 2, 3]

    run(main)


def test_the_totals_of_a_frame_equal_the_counters_of_the_metrics_page() -> None:
    async def main() -> None:
        worker = FakeWorker(then(answer, answer, hang), slots=1)
        async with standing(worker, tenant_queue_size=2) as stand:
            for name in ("ann", "bob"):
                assert (await stand.chat(headers={"X-Tenant": name})).status_code == 200
            held = [asyncio.create_task(stand.chat(headers={"X-Tenant": "cyd"})) for _ in range(3)]
            await until(lambda: len(stand.dispatcher.waiting) == 2)
            assert (await stand.chat(headers={"X-Tenant": "cyd"})).status_code == 429
            assert (await stand.chat(headers={"X-Weir-Deadline-Ms": "1"})).status_code in (429, 504)
            assert (await stand.client.post("/v1/chat/completions", content=b"{")).status_code == 400
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            await stand.all_returned()
            totals = (await frame(stand.client)).totals
            counted = await summed(stand, "weir_requests_total", "outcome")
            assert {outcome: float(count) for outcome, count in totals.outcomes.items()} == counted
            assert set(totals.outcomes) == set(Outcome)
            assert totals.outcomes["client_gone"] == 3
            decided = await summed(stand, "weir_admission_total", "decision")
            assert (totals.admitted, totals.degraded) == (decided["admit"], decided["degrade"])
            served = await summed(stand, "weir_served_cost_total", "tenant")
            assert totals.served_tokens == pytest.approx(sum(served.values()))
            wasted = await summed(stand, "weir_wasted_seconds_total", "reason")
            assert totals.wasted_s == pytest.approx(sum(wasted.values()), abs=1e-5)
            assert 0 < totals.wasted_s < totals.worker_s

    run(main)


def test_a_frame_shows_who_runs_who_waits_and_what_was_decided() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand:
            held = [asyncio.create_task(stand.chat(headers={"X-Tenant": name})) for name in ("ann", "bob")]
            await until(lambda: len(stand.dispatcher.waiting) == 1 and stand.workers[0].running == 1)
            seen = await frame(stand.client)
            assert (seen.inflight.now, seen.waiting.requests) == (1, 1)
            (worker,) = seen.workers
            (running,) = worker.requests
            assert {each.id: (each.waiting, each.running) for each in seen.tenants} == {"ann": (0, 1), "bob": (1, 0)}
            assert (seen.tenants[0].id, seen.tenants[0].place, running.tenant) == ("bob", 0, "ann")
            assert [each.what for each in seen.decisions] == ["admit", "admit"]
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)

    run(main)


# ---- lives


def test_the_life_of_a_served_request_goes_from_its_arrival_to_its_end() -> None:
    async def main() -> None:
        retrieval = FakeRetrieval([passage(1)])
        async with standing(FakeWorker(answer), retrieval=retrieval) as stand:
            asked = {"query": "what is a weir?", "tenant": "ann", "stream": True}
            reply = await stand.post("/ask", asked, x_request_id="mine")
            assert reply.status_code == 200
            told = await life(stand, "mine")
            assert (told.state, told.outcome, told.tenant, told.model) == ("ended", "served", "ann", "fake")
            assert whats(told) == ["arrived", "admit", "passages", "started", "first token", "served"]
            assert [moment.at_ms for moment in told.timeline] == sorted(moment.at_ms for moment in told.timeline)
            numbers = told.numbers
            assert (numbers.prompt_tokens, numbers.completion_tokens, numbers.worker) == (7, 3, "worker-0")
            assert (numbers.retrieval_source, numbers.attempts, numbers.margin) == ("db", 1, 0.8)
            assert numbers.total_ms == told.timeline[-1].at_ms
            said = json.dumps(msgspec.to_builtins(told))
            assert not [words for words in ("what is a weir", "Fact number", "holds.") if words in said]

    run(main)


def test_whoever_asks_for_a_life_is_somebody_who_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    monkeypatch.setattr(Journal, "looked", lambda _, now: looks.append(now))

    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            await stand.chat(headers={"x-request-id": "mine"})
            assert looks == []
            await life(stand, "mine")
            assert len(looks) == 1

    run(main)


def test_the_life_of_a_refused_request_says_what_its_client_was_told() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1), tenant_queue_size=1) as stand:
            held = [asyncio.create_task(stand.chat(headers={"X-Tenant": "ann"})) for _ in range(2)]
            await until(lambda: len(stand.dispatcher.waiting) == 1)
            reply = await stand.chat(headers={"X-Tenant": "ann", "x-request-id": "no-room"})
            told = await life(stand, "no-room")
            assert (told.state, told.outcome, told.tenant) == ("ended", "tenant_queue_full", "ann")
            assert told.message == error_of(reply)["message"]
            assert whats(told) == ["arrived", "checked", "refuse"]
            assert told.numbers.hint_ms == int(reply.headers["retry-after-ms"])
            assert (told.numbers.queue_depth, told.numbers.worker, told.numbers.waited_ms) == (1, None, None)
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)

    run(main)


def test_the_life_of_a_request_that_expired_in_line_tells_how_long_it_waited() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand:
            held = asyncio.create_task(stand.chat(headers={"X-Tenant": "ann"}))
            await until(lambda: stand.workers[0].running == 1)
            reply = await stand.chat(headers={"X-Weir-Deadline-Ms": "300", "x-request-id": "late"})
            assert error_of(reply)["code"] == "deadline_expired"
            told = await life(stand, "late")
            assert whats(told) == ["arrived", "checked", "admit", "expire"]
            assert told.timeline[1].detail.endswith("had to fit into 80 % of 300 ms")
            assert told.numbers.waited_ms is not None
            assert told.numbers.counted_wait_ms is not None
            assert told.numbers.waited_ms > 100
            assert told.message == error_of(reply)["message"]
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)

    run(main)


def test_the_life_of_a_request_that_was_made_smaller_says_so() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            stand.dispatcher.scheduler.hold_level(None, 2)
            reply = await stand.chat(headers={"x-request-id": "small"}, max_tokens=100)
            assert reply.headers["x-weir-level"] == "2"
            told = await life(stand, "small")
            assert (told.level, whats(told)[1]) == (2, "degrade")
            assert told.numbers.granted_tokens is not None
            assert told.numbers.granted_tokens < 100
            assert (await frame(stand.client)).totals.degraded == 1

    run(main)


def test_the_life_of_a_request_can_be_followed_until_its_client_leaves() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1)) as stand:
            task = asyncio.create_task(stand.chat(headers={"x-request-id": "mine"}))
            await until(lambda: stand.workers[0].running == 1)
            running = await life(stand, "mine")
            assert (running.state, running.outcome) == ("running", None)
            assert whats(running) == ["arrived", "admit", "started"]
            behind = asyncio.create_task(stand.chat(headers={"x-request-id": "behind"}))
            await until(lambda: len(stand.dispatcher.waiting) == 1)
            assert (await life(stand, "behind")).state == "waiting"
            behind.cancel()
            await until(lambda: not stand.dispatcher.waiting)
            task.cancel()
            await asyncio.gather(task, behind, return_exceptions=True)
            await stand.all_returned()
            told = await life(stand, "mine")
            assert (told.outcome, whats(told)[-1]) == ("client_gone", "gone")
            assert whats(await life(stand, "behind")) == ["arrived", "checked", "admit", "gone"]

    run(main)


def test_without_cancellation_a_client_that_leaves_is_told_at_once_and_its_work_when_it_is_over() -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def slow(exchange: Exchange, request: GenerateRequest, worker: FakeWorker) -> None:
            await over.wait()
            await answer(exchange, request, worker)

        async with standing(FakeWorker(slow, slots=1)) as stand:
            body = json.dumps({"cancellation": False}).encode()
            assert (await stand.client.post("/console/policy", content=body, headers=OURS)).status_code == 200
            task = asyncio.create_task(stand.chat(headers={"x-request-id": "mine"}))
            await until(lambda: stand.workers[0].running == 1)
            task.cancel()
            async with asyncio.timeout(20):
                while (await frame(stand.client)).decisions[-1].what != "gone":
                    await asyncio.sleep(0.01)
            told = await life(stand, "mine")
            assert (told.state, whats(told)[-1]) == ("running", "gone")
            decided = (await frame(stand.client)).decided
            over.set()
            await stand.all_returned()
            told = await life(stand, "mine")
            assert (told.state, told.outcome, whats(told)[-2:]) == ("ended", "client_gone", ["gone", "ended"])
            assert (await frame(stand.client)).decided == decided == 2

    run(main)


def test_a_request_that_nobody_knows_is_not_found() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            reply = await stand.client.get("/console/requests/nobody")
            assert (reply.status_code, error_of(reply)["code"]) == (404, "not_found")

    run(main)


# ---- who may


def test_the_policy_is_switched_by_the_page_and_by_no_other_sites() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            body = json.dumps({"fairness": False}).encode()
            for headers, expected in (
                ({}, (403, "forbidden")),
                ({**OURS, "origin": "http://evil.example"}, (403, "forbidden")),
                ({**OURS, "host": "evil.example"}, (421, "misdirected_request")),
            ):
                reply = await stand.client.post("/console/policy", content=body, headers=headers)
                assert (reply.status_code, error_of(reply)["code"]) == expected
            assert (await frame(stand.client)).policy.fairness is True
            reply = await stand.client.post("/console/policy", content=body, headers=OURS)
            assert reply.json() == {"admission": True, "fairness": False, "cancellation": True}
            assert (await frame(stand.client)).policy.fairness is False

    run(main)


def test_with_a_tenants_file_the_public_port_has_nothing_of_the_console(tmp_path: Path) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), tenants_file=listed(tmp_path, entry("a"))) as stand:
            for path in (*ROUTES, "/console/policy", "/console/storm"):
                reply = await stand.client.get(path, headers=as_tenant("a"))
                assert (path, reply.status_code) == (path, 404)
            assert (await stand.client.post("/console/policy", headers=OURS)).status_code == 404
            assert (await stand.metrics.get("/console")).status_code == 200
            async with watching(stand.metrics) as events:
                _, hello = await anext(events)
                assert (hello.lab, hello.policy, hello.storm) == (False, False, False)
                await anext(events)
            assert (await stand.metrics.post("/console/policy", headers=OURS)).status_code == 404
            await stand.chat(headers=as_tenant("a", **{"x-request-id": "mine"}))
            assert (await stand.metrics.get("/console/requests/mine")).json()["tenant"] == "a"
            assert (await stand.metrics.get("/metrics")).status_code == 200

    run(main)


def test_beside_the_metrics_the_page_is_for_all_and_what_it_shows_for_the_token_only(tmp_path: Path) -> None:
    async def main() -> None:
        file = listed(tmp_path, entry("a"))
        async with standing(FakeWorker(answer), tenants_file=file, admin_token=SecretStr("t0ken-t0ken-t0ken")) as stand:
            assert (await stand.metrics.get("/console")).status_code == 200
            for path in ("/console/events", "/console/requests/r"):
                for headers in ({}, {"authorization": "Bearer wrong"}):
                    reply = await stand.metrics.get(path, headers=headers)
                    assert (reply.status_code, error_of(reply)["code"]) == (401, "invalid_api_key")
            assert (await frame(stand.metrics, authorization="Bearer t0ken-t0ken-t0ken")).seq == 1

    run(main)


def test_as_many_viewers_as_there_may_be_leave_room_for_a_scraper(tmp_path: Path) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), tenants_file=listed(tmp_path, entry("a"))) as stand:
            port, writers = stand.router.bound_metrics_port, []
            for _ in range(64):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /console/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                await reader.readuntil(b"event: frame")
                writers.append(writer)
            reply = await stand.metrics.get("/console/events")
            assert (reply.status_code, error_of(reply)["code"]) == (503, "too_many_viewers")
            assert int(reply.headers["retry-after"]) > 0
            assert (await stand.metrics.get("/metrics")).status_code == 200
            for writer in writers:
                writer.close()

    run(main)


@pytest.mark.parametrize("name", ["nothing.js", "x%0ay", "%0aindex.html"])
def test_an_unknown_file_is_the_pages_own_404_whatever_characters_its_name_has(name: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            reply = await stand.client.get(f"/console/static/{name}")
            assert (reply.status_code, error_of(reply)["message"]) == (404, "the console has no such file")

    run(main)


def test_in_lab_mode_the_metrics_listener_has_no_console() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            assert (await stand.metrics.get("/console")).status_code == 404

    run(main)


def test_a_router_that_drains_ends_its_streams_and_can_still_be_watched() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            async with watching(stand.client) as events:
                await anext(events)
                stand.router.drain.begin()
                async for _ in events:
                    pass
            assert (await frame(stand.client)).draining is True

    run(main)
