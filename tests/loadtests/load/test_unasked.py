"""A second answer, when its client is content with the first: nobody waits for it, and it is counted."""

from __future__ import annotations

import asyncio

import pytest

from loadtests.load.arrivals import Ask
from loadtests.load.client import Client
from tests.loadtests.load.scripted import Received, Script, answer, endings, plan, serving, steadily

BETWEEN_S = 0.05


async def once_more_later(heard: Received, writer: asyncio.StreamWriter) -> None:
    await answer(heard, writer)
    await asyncio.sleep(BETWEEN_S)
    await answer(heard, writer)


@pytest.mark.parametrize(("script", "unasked"), [(answer, 0), (once_more_later, 1)])
def test_a_second_answer_is_counted_though_every_request_had_a_good_one(script: Script, unasked: int) -> None:
    async def main() -> tuple[dict[str, int], int]:
        made = plan()
        tenant = made.tenants[0]
        two = [Ask(at_s, tenant, 16, 4, False) for at_s in (0.0, 20 * BETWEEN_S)]
        async with serving(script) as (_, url):
            client = Client(made, url, iter(two))
            ledger = await asyncio.wait_for(client.run(), 30)
        return endings(ledger), client.unasked

    ended, found = steadily(main())
    assert sum(ended.values()) == 2
    assert found == unasked
