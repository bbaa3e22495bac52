"""What a client gets when it does not get an answer: on every path the same table."""

from __future__ import annotations

import asyncio
import json
from unittest import mock

import pytest

from tests.router.rig import FakeWorker, answer, cut_after, error_of, failing, hang, refuse, standing, then
from tests.runtime.rig import ask as raw_ask
from tests.runtime.rig import post as raw_post
from tests.runtime.rig import until
from tests.virtual import run

AT_ONCE = {"Prefer": "wait=0"}


def test_the_cap_refuses_at_once_with_a_hint_and_takes_the_next_when_free() -> None:
    async def main() -> None:
        async with standing(FakeWorker(then(hang, answer)), max_inflight=1) as stand:
            holding = asyncio.create_task(stand.chat())
            await until(lambda: stand.workers[0].running == 1)
            refused = await stand.chat(headers=AT_ONCE)
            error = error_of(refused)
            assert refused.status_code == 429
            assert (error["code"], error["type"]) == ("yield", "rate_limit_error")
            assert (error["details"]["status"], error["details"]["reason"]) == ("yield", "no_slot")
            assert int(refused.headers["retry-after-ms"]) == error["details"]["retry_hint_ms"] >= 50
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["x-should-retry"] == "true"
            holding.cancel()
            await stand.all_returned()
            assert (await stand.chat()).status_code == 200
            assert await stand.counted() == {"client_gone": 1, "yield": 1, "served": 1}

    run(main)


def test_full_workers_refuse_at_once_though_the_cap_has_room() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1), max_inflight=10) as stand:
            holding = asyncio.create_task(stand.chat())
            await until(lambda: stand.workers[0].running == 1)
            refused = await stand.chat(headers=AT_ONCE)
            assert (refused.status_code, error_of(refused)["details"]["reason"]) == (429, "no_slot")
            holding.cancel()

    run(main)


def test_the_cap_is_never_exceeded_and_every_request_ends_once() -> None:
    async def slow(exchange, request, worker):  # type: ignore[no-untyped-def]  # a script
        await asyncio.sleep(0.02)
        await answer(exchange, request, worker)

    async def main() -> None:
        async with standing(FakeWorker(slow, slots=64), max_inflight=5) as stand:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, stand.workers[0].running)
                    await asyncio.sleep(0.001)

            watching = asyncio.create_task(watch())
            responses = await asyncio.gather(*(stand.chat(headers=AT_ONCE) for _ in range(60)))
            watching.cancel()
            statuses = [response.status_code for response in responses]
            assert set(statuses) <= {200, 429}
            assert most <= 5
            counted = await stand.counted()
            assert counted["served"] == statuses.count(200) > 0
            assert counted["yield"] == statuses.count(429) > 0

    run(main)


def test_no_worker_at_all_is_503_with_a_hint() -> None:
    async def main() -> None:
        async with standing() as stand:
            refused = await stand.chat()
            assert (refused.status_code, error_of(refused)["code"]) == (503, "no_capacity")
            assert refused.headers["x-should-retry"] == "true"
            assert int(refused.headers["retry-after-ms"]) > 0
            ready = await stand.client.get("/health/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
            assert (await stand.client.get("/health")).status_code == 200

    run(main)


def test_while_no_worker_is_alive_the_hint_is_about_a_second_though_there_were_workers() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            assert (await stand.chat()).status_code == 200
            stand.workers[0].draining = True
            await until(lambda: not stand.dispatcher.fleet.alive("fake"), "the worker's drain is known")
            for _ in range(20):
                refused = await stand.chat()
                assert (refused.status_code, error_of(refused)["code"]) == (503, "no_capacity")
                assert 1000 <= int(refused.headers["retry-after-ms"]) <= 1200

    run(main)


def test_a_refused_request_is_retried_once_on_the_other_worker() -> None:
    async def main() -> None:
        async with standing(FakeWorker(refuse), FakeWorker(answer)) as stand:
            for _ in range(4):
                assert (await stand.chat()).status_code == 200
            retries = dict(await stand.samples("weir_retries_total"))
            assert retries['{reason="refused"}'] == len(stand.workers[0].asked) > 0

    run(main)


def test_when_every_worker_refuses_so_does_the_router_with_their_delay_as_the_hint() -> None:
    async def main() -> None:
        async with standing(FakeWorker(refuse), FakeWorker(refuse)) as stand:
            refused = await stand.chat()
            assert (refused.status_code, error_of(refused)["details"]["reason"]) == (429, "workers_busy")
            assert error_of(refused)["details"]["retry_hint_ms"] == 50  # 30 ms was stated; 50 is the least hint
            assert sum(len(worker.asked) for worker in stand.workers) == 2

    run(main)


def test_a_lone_worker_that_refuses_is_asked_again_after_its_stated_delay() -> None:
    async def main() -> None:
        async with standing(FakeWorker(then(refuse, answer))) as stand:
            assert (await stand.chat()).status_code == 200
            assert len(stand.workers[0].asked) == 2

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_worker_that_fails_before_the_first_output_costs_the_client_nothing(stream: bool) -> None:
    async def main() -> None:
        async with standing(FakeWorker(failing()), FakeWorker(answer)) as stand:
            for _ in range(4):
                assert (await stand.chat(stream=stream)).status_code == 200
            assert (
                len(stand.workers[0].asked) == dict(await stand.samples("weir_retries_total"))['{reason="failed"}'] > 0
            )


def test_a_worker_that_drops_its_connection_is_left_alone_until_it_answers_a_probe() -> None:
    async def main() -> None:
        async with standing(FakeWorker(then(cut_after(0), answer)), FakeWorker(answer)) as stand:
            for _ in range(4):
                assert (await stand.chat(stream=True)).status_code == 200
            await stand.until_up(2)
            for number in range(4):  # each with a beginning of its own: the same one stays with who served it last
                question = [{"role": "user", "content": f"{number} weirs"}]
                assert (await stand.chat(messages=question)).status_code == 200
            assert len(stand.workers[0].asked) > 1

    run(main)


def test_two_failures_are_502_and_no_third_worker_is_tried() -> None:
    async def main() -> None:
        async with standing(*(FakeWorker(failing()) for _ in range(4))) as stand:
            failed = await stand.chat()
            assert (failed.status_code, error_of(failed)["code"]) == (502, "upstream_failed")
            assert sum(len(worker.asked) for worker in stand.workers) == 2

    run(main)


def test_a_workers_words_are_in_the_log_with_the_requests_id_and_not_in_the_answer() -> None:
    async def main() -> None:
        workers = [FakeWorker(failing("node gpu-12 at 10.0.0.5 broke")) for _ in range(2)]
        async with standing(*workers, log_level="INFO") as stand:
            said: list[tuple[bytes, dict[str, object]]] = []

            def write(level: str, event: str, fields: dict[str, object], begun: bytes = b"") -> None:
                said.append((begun, fields))

            with mock.patch.object(stand.router.log, "write", write):
                failed = await stand.chat(headers={"x-request-id": "known"})
                await until(lambda: said, "the line of the log")
            assert failed.status_code == 502
            assert "gpu-12" not in failed.text
            assert error_of(failed)["message"] == "two workers failed: it returned an error"
            line = next(fields for begun, fields in said if b'"id":"known"' in begun)
            assert line["why"] == "the worker failed: node gpu-12 at 10.0.0.5 broke"

    run(main)


def test_a_stream_cut_after_its_first_output_ends_with_an_error_event_and_no_done() -> None:
    async def main() -> None:
        async with standing(FakeWorker(cut_after(2)), FakeWorker(cut_after(2))) as stand:
            response = await stand.chat(stream=True)
            assert response.status_code == 200
            assert "[DONE]" not in response.text
            last = response.text.strip().split("\n\n")[-1]
            assert last.startswith("event: error\ndata: ")
            assert json.loads(last.split("data: ")[1])["error"]["code"] == "upstream_failed"
            assert await stand.counted() == {"upstream_failed": 1}

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_deadline_that_passes_is_504_and_the_worker_is_told(stream: bool) -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang)) as stand:
            late = await stand.chat(stream=stream, headers={"x-weir-deadline-ms": "80"})
            assert (late.status_code, error_of(late)["code"]) == (504, "deadline_exceeded")
            assert late.headers["x-should-retry"] == "false"
            assert "retry-after" not in late.headers
            worker = stand.workers[0]
            assert worker.asked[0].deadline_ms == pytest.approx(80)  # nothing takes time before it
            await until(lambda: worker.left == 1, "the worker's notice by its socket")
            await until(lambda: worker.cancelled == [worker.asked[0].id], "the cancel call")

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_worker_that_freezes_gives_up_what_it_has_not_begun_to_answer(stream: bool) -> None:
    async def main() -> None:
        frozen = FakeWorker(hang)
        async with standing(frozen, FakeWorker(answer)) as stand:
            asking = [asyncio.create_task(stand.chat(stream=stream)) for _ in range(4)]
            await until(lambda: frozen.running > 0, "a request at the worker that freezes")
            frozen.frozen = True
            assert {response.status_code for response in await asyncio.gather(*asking)} == {200}
            await stand.until_up(1)

    run(main)


def test_clients_that_use_the_same_request_id_do_not_meet_at_a_worker() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            same = {"x-request-id": "the-same"}
            responses = await asyncio.gather(*(stand.chat(headers=same) for _ in range(4)))
            assert [response.headers["x-request-id"] for response in responses] == ["the-same"] * 4
            assert len({request.id for request in stand.workers[0].asked}) == 4

    run(main)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_client_that_leaves_frees_its_place_and_its_worker(stream: bool) -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang), max_inflight=1) as stand:
            asking = asyncio.create_task(stand.chat(stream=stream))
            await until(lambda: stand.workers[0].running == 1)
            asking.cancel()
            await until(lambda: stand.workers[0].left == 1, "the worker's notice")
            await stand.all_returned()
            assert await stand.counted() == {"client_gone": 1}

    run(main)


def test_a_draining_worker_gets_nothing_new_and_a_draining_router_says_so() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer, draining=True), FakeWorker(answer)) as stand:
            for _ in range(3):
                assert (await stand.chat()).status_code == 200
            assert stand.workers[0].asked == []
            stand.router.drain.begin()
            refused = await stand.chat()
            assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
            assert refused.headers["x-should-retry"] == "true"

    run(main)


BAD = {
    "no messages": ({}, "messages"),
    "a wrong type": ({"messages": "hi"}, "messages"),
    "a role that is no text": ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "absurdly many tokens": ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**9}, "max_tokens"),
    "tokens below one": ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
    "a temperature beyond the range": (
        {"messages": [{"role": "user", "content": "x"}], "temperature": 3},
        "temperature",
    ),
    "more than one answer": ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "n"),
    "too many stops": ({"messages": [{"role": "user", "content": "x"}], "stop": list("abcde")}, "stop"),
}


@pytest.mark.parametrize(("body", "param"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_4xx_naming_the_field_and_reaches_no_worker(body: object, param: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            refused = await stand.post("/v1/chat/completions", body)
            assert (refused.status_code, error_of(refused)["param"]) == (400, param)
            assert refused.headers["x-should-retry"] == "false"
            assert stand.workers[0].asked == []
            assert await stand.counted() == {"invalid_request": 1}

    run(main)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e308", "5s", "1_0", "١٢", "true", ""])
def test_a_deadline_that_is_no_duration_is_400_naming_the_header(value: str) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            body = b'{"messages":[{"role":"user","content":"x"}]}'
            head = raw_post("/v1/chat/completions", body).decode("latin-1")
            named = f"host: localhost\r\nx-weir-deadline-ms: {value.encode().decode('latin-1')}"
            data = head.replace("host: localhost", named)
            status, _, answered = await raw_ask(stand.router.bound_port, data.encode("latin-1"))
            assert (status, json.loads(answered)["error"]["param"]) == (400, "x-weir-deadline-ms")

    run(main)


def test_invented_tenants_share_one_name_beyond_the_bound() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), max_lab_tenants=3) as stand:
            for number in range(20):
                assert (await stand.chat(headers={"x-tenant": f"t{number}"})).status_code == 200
            tenants = {
                labels.split('tenant="')[1].split('"')[0] for labels, _ in await stand.samples("weir_requests_total")
            }
            assert tenants == {"demo", "t0", "t1", "other"}
            refused = await stand.chat(headers={"x-tenant": "a b"})
            assert (refused.status_code, error_of(refused)["param"]) == (400, "X-Tenant")

    run(main)
