"""One short siege of real processes."""

from __future__ import annotations

import asyncio

from loadtests.cluster.stand import stand
from loadtests.runs.siege.attacks import ATTACKS
from loadtests.runs.siege.judging import Row
from loadtests.runs.siege.run import SHAPE, TENANTS, Wanted, plan, play_row


def test_every_kind_of_attacker_reaches_a_real_router_and_it_goes_on_answering() -> None:
    """Ten of each for a second, one kind after the other. No latency is judged: the machine may be slow."""
    wanted = Wanted(seconds=1, limit=10, settle_s=0.1)
    rows = [Row(attack.name) for attack in ATTACKS if not attack.exhausts]

    async def played() -> None:
        async with stand(SHAPE, TENANTS) as made:
            for row in rows:
                await play_row(row, made, plan(20, 1, wanted.settle_s), wanted, say=lambda text: None)
            made.check()

    asyncio.run(played())
    for row in rows:
        assert row.fault == "", row
        endings = [ending for each in row.clients.values() for ending in each.endings]
        assert endings, row
        assert all(ending.startswith(("served", "refused")) for ending in endings), row
        assert row.memory_mb, row
        assert row.counts.wanted == 10, row
        assert row.counts.opened + row.counts.refused >= 10, row
