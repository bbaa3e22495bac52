"""The switches on a real listener: who may turn them, what they say, and that they do what they say."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any
from unittest.mock import Mock

import httpx2
import msgspec
import pytest
from pydantic import SecretStr

from services.core.policies import MECHANISMS, Policies
from services.router.operating.policy import SetPolicies, Switches
from services.router.serving.detached import DetachedRequests
from tests.router.fleetrig import worker
from tests.router.house import House, now, turn
from tests.router.rig import FakeWorker, Stand, answer, error_of, hang, standing
from tests.runtime.rig import until
from tests.virtual import run

ALL_ON = asdict(Policies())


async def post(stand: Stand, body: Any, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return await stand.metrics.post("/admin/policy", content=content, headers=headers)


async def gauge(stand: Stand) -> dict[str, bool]:
    return {labels.split('"')[1]: bool(value) for labels, value in await stand.samples("weir_mechanism_enabled")}


def test_a_switch_is_shown_wherever_somebody_may_look_for_it() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            assert (await stand.metrics.get("/admin/policy")).json() == await gauge(stand) == ALL_ON
            for mechanism in MECHANISMS:
                expected = ALL_ON | {mechanism: False}
                assert (await post(stand, {mechanism: False})).json() == expected
                assert (await stand.metrics.get("/admin/policy")).json() == await gauge(stand) == expected
                assert (await stand.metrics.get("/admin/state")).json()["scheduler"]["policies"] == expected
                assert (await stand.chat()).status_code == 200
                assert (await post(stand, {mechanism: True})).json() == ALL_ON

    run(main)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"admission": "off"}, "admission"),
        ({"fairness": 0}, "fairness"),
        ({"cancellation": None}, "cancellation"),
        ({"admission": False, "queue": False}, "queue"),
        ([], None),
        (b"", None),
        (b"{", None),
    ],
)
def test_a_body_that_is_wrong_is_refused_by_the_name_of_its_field_and_switches_nothing(body, param) -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer)) as stand:
            refused = await post(stand, body)
            assert (refused.status_code, error_of(refused)["param"]) == (400, param)
            assert await gauge(stand) == ALL_ON

    run(main)


def test_nobody_switches_from_a_web_page_nor_without_the_token_nor_on_the_public_port() -> None:
    async def main() -> None:
        off, key = {"admission": False}, {"Authorization": "Bearer s3cret-s3cret-s3cret"}
        async with standing(FakeWorker(answer), admin_token=SecretStr("s3cret-s3cret-s3cret")) as stand:
            assert (await post(stand, off)).status_code == 401
            assert (await post(stand, off, Origin="http://evil.example", **key)).status_code == 403
            assert (await stand.client.post("/admin/policy", content=b"{}")).status_code == 404
            assert (
                await stand.metrics.put("/admin/policy", headers={"Authorization": "Bearer s3cret-s3cret-s3cret"})
            ).status_code == 405
            assert await gauge(stand) == ALL_ON
            assert (await post(stand, off, **key)).status_code == 200

    run(main)


def test_a_router_may_begin_with_mechanisms_off() -> None:
    async def main() -> None:
        async with standing(FakeWorker(answer), policy="no-fairness,no-admission") as stand:
            assert await gauge(stand) == ALL_ON | {"fairness": False, "admission": False}

    run(main)


def test_without_admission_a_tenant_fills_the_whole_line_and_with_it_its_own_part() -> None:
    async def main() -> None:
        async with standing(FakeWorker(hang, slots=1), max_queue_size=6, tenant_queue_size=2) as stand:
            await post(stand, {"admission": False})
            held = [asyncio.create_task(stand.chat()) for _ in range(7)]
            await until(lambda: len(stand.dispatcher.waiting) == 6, "the line is full")
            full = await stand.chat()
            assert (full.status_code, error_of(full)["details"]["reason"]) == (429, "platform_requests")
            await post(stand, {"admission": True})
            assert len(stand.dispatcher.waiting) == 6, "nobody lost a place"
            own = await stand.chat(headers={"X-Weir-Deadline-Ms": "100000"})
            assert error_of(own)["details"]["reason"] == "tenant_requests"
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)

    run(main)


# ---- in virtual time


def switches_of(house: House) -> tuple[Switches, Mock]:
    log = Mock()
    return Switches(house.dispatcher, DetachedRequests(Mock(), Mock(), hold_s=10.0), log), log


def test_a_change_is_logged_once_and_what_changes_nothing_is_not() -> None:
    async def main() -> None:
        switches, log = switches_of(House([worker("a")]))
        assert switches.turn(SetPolicies(fairness=False, admission=True)) == Policies(fairness=False)
        (said,) = log.warning.call_args_list
        assert said.args == ("policy switched",)
        assert said.kwargs == asdict(Policies(fairness=False)) | {"detached_ended": 0}
        switches.turn(SetPolicies(fairness=False))
        switches.turn(SetPolicies())
        assert log.warning.call_count == 1
        switches.announce()
        assert log.warning.call_args.kwargs["off"] == "fairness"

    run(main())


def test_in_the_order_of_arrival_whoever_came_first_starts_first_and_in_turns_again_after_it() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        switches, _ = switches_of(house)
        switches.turn(SetPolicies(fairness=False))
        heavy = [turn("heavy", prompt_tokens=500) for _ in range(6)]
        light = turn("light", prompt_tokens=500)
        for each in (*heavy, light):
            house.serve(each)
        await asyncio.sleep(2.5)
        assert house.started == heavy[:3]
        switches.turn(SetPolicies(fairness=True))
        await house.empty()
        assert house.started.index(light) < house.started.index(heavy[-1])

    run(main())


def test_those_who_are_late_when_admission_comes_back_are_told_at_once_though_nothing_else_happens() -> None:
    async def main() -> None:
        house = House([worker("a", slots=1)])
        switches, _ = switches_of(house)
        switches.turn(SetPolicies(admission=False))
        house.hold(turn())
        late = turn(within_s=1.0)
        house.serve(late)
        await asyncio.sleep(5.0)
        assert late in house.dispatcher.waiting
        back_at = now()
        switches.turn(SetPolicies(admission=True))
        await asyncio.sleep(0.001)
        assert house.refusals[late].details.reason == "deadline"
        assert house.ended_at[late] - back_at < 0.001
        for ride in house.rides.values():
            ride.cancel()
        await house.empty()

    run(main())
