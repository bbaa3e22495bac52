"""Faults that are put for a time: they need nobody to take them away."""

from __future__ import annotations

import asyncio
import random

import pytest

from services.worker.engines.faults import FaultPlan, Faults
from services.worker.faultsapp import Temporary
from tests.virtual import run
from tests.worker.test_worker_http import served

SLOW, SLOWER = FaultPlan(slow_factor=4), FaultPlan(slow_factor=9)


def faults(plan: FaultPlan = FaultPlan()) -> Faults:  # noqa: B008  # a frozen value
    return Faults(plan, chance=random.Random(1))


def test_a_fault_for_a_time_gives_way_to_what_was_there_before():
    async def main() -> None:
        mine = faults(SLOW)
        temporary = Temporary(mine)
        temporary.put(SLOWER, 3.0)
        await asyncio.sleep(2.9)
        assert mine.plan == SLOWER
        await asyncio.sleep(0.2)
        assert mine.plan == SLOW

    run(main())


def test_put_again_it_lasts_longer_and_what_was_there_at_first_comes_back():
    async def main() -> None:
        mine = faults()
        temporary = Temporary(mine)
        for _ in range(5):
            temporary.put(SLOW, 3.0)
            await asyncio.sleep(1.0)
        temporary.put(SLOWER, 3.0)
        assert mine.plan == SLOWER
        await asyncio.sleep(3.1)
        assert mine.plan == FaultPlan()

    run(main())


def test_healed_at_once_it_does_not_heal_again_later():
    async def main() -> None:
        mine = faults()
        temporary = Temporary(mine)
        temporary.put(SLOW, 3.0)
        temporary.heal()
        assert mine.plan == FaultPlan()
        temporary.put(SLOWER, 0.0)
        temporary.heal()  # nothing is there for a time
        await asyncio.sleep(10)
        assert mine.plan == SLOWER

    run(main())


def test_a_fault_for_good_ends_one_for_a_time():
    async def main() -> None:
        mine = faults()
        temporary = Temporary(mine)
        temporary.put(SLOW, 3.0)
        temporary.put(SLOWER, 0.0)
        await asyncio.sleep(10)
        assert mine.plan == SLOWER

    run(main())


def test_what_is_only_put_for_longer_counts_on():
    async def main() -> None:
        mine = faults()
        temporary = Temporary(mine)
        hanging = FaultPlan(hang_after_tokens=10)
        temporary.put(hanging, 3.0)
        mine.end_step(tokens=10, answers=0)
        temporary.put(hanging, 3.0)
        assert mine.lasting_s(1.0) == float("inf")

    run(main())


def test_over_http_a_fault_heals_by_itself_and_by_delete():
    async def scenario(public, metrics):
        put = await metrics.put("/faults", json={"slow_factor": 9, "for_s": 600})
        assert put.json()["slow_factor"] == 9
        assert (await metrics.delete("/faults")).json()["slow_factor"] == 1
        await metrics.put("/faults", json={"slow_factor": 9, "for_s": 0.05})
        async with asyncio.timeout(20):
            while (await metrics.get("/faults")).json()["slow_factor"] != 1:
                await asyncio.sleep(0.01)
        too_long = await metrics.put("/faults", json={"for_s": 601})
        assert too_long.status_code == 400

    served(scenario)


@pytest.mark.parametrize(("lab_network", "status"), [(False, 404), (True, 200)])
def test_beyond_loopback_faults_are_taken_in_a_lab_network_only(lab_network: bool, status: int):
    async def scenario(public, metrics):
        reply = await metrics.get("/faults", headers={"host": "worker-0:9010"})
        assert reply.status_code == status
        if lab_network:  # a browser is still none of the lab
            page = {"host": "worker-0:9010", "origin": "http://evil.example"}
            assert (await metrics.put("/faults", json={"slow_factor": 9}, headers=page)).status_code == 403

    served(scenario, metrics_host="0.0.0.0", inner_network=True, lab_network=lab_network)


def test_a_worker_announces_its_full_step_whatever_it_is_doing():
    async def scenario(public, metrics):
        await metrics.put("/faults", json={"slow_factor": 3})
        await public.post("/infer", json={"prompt": "What is a weir?", "max_tokens": 4})
        status = (await public.get("/status")).json()
        assert status["full_step_ms"] == 1.2  # (20 + 0.5 * 8) ms, a twentieth of it here
        assert status["step_ms"] > 2

    served(scenario)
