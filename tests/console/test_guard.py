"""Who may change something from the console: its own page, programs that say so, and no other site's page."""

from __future__ import annotations

import asyncio

import pytest

from services.console.guard import check_write, guarded
from services.runtime.errors import BadInput
from services.runtime.http import Exchange
from tests.console.rig import FakeWire

OURS = {"x-weir-console": "1", "host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}


def write(**headers: str | None) -> Exchange:
    """A write from the page, but for these headers."""
    named = {**OURS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    sent = [(name.encode(), value.encode()) for name, value in named.items() if value is not None]
    return Exchange(FakeWire(), "POST", "/console/policy", sent)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": None},
        {"origin": "https://127.0.0.1:8000"},
        {"host": "localhost:8000", "origin": "http://localhost:8000"},
        {"host": "[::1]:8000", "origin": "http://[::1]:8000"},
        {"host": "LOCALHOST:8000", "origin": "http://localhost:8000"},
        {"host": "192.168.1.4:8000", "origin": "http://192.168.1.4:8000"},
        {"host": "router:8000", "origin": "http://router:8000"},
        {"host": "router", "origin": None},
    ],
)
def test_its_own_page_and_programs_that_say_so_may(headers: dict[str, str | None]) -> None:
    check_write(write(**headers))


@pytest.mark.parametrize(
    "headers",
    [
        {"x_weir_console": None},
        {"x_weir_console": "0"},
        {"x_weir_console": None, "origin": None},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8001"},
        {"origin": "http://127.0.0.1:8000.evil.example"},
        {"origin": "http://evil.example/http://127.0.0.1:8000"},
        {"host": None},
        {"host": "evil.example:8000", "origin": "http://evil.example:8000"},
        {"host": "127.0.0.1.evil.example", "origin": "http://127.0.0.1.evil.example"},
        {"host": "localhost.evil.example:8000", "origin": None},
    ],
)
def test_another_sites_page_may_not(headers: dict[str, str | None]) -> None:
    with pytest.raises(BadInput) as refused:
        check_write(write(**headers))
    assert (refused.value.status, refused.value.code) == (403, "forbidden")


def test_what_is_refused_never_reaches_the_handler() -> None:
    reached = []

    async def handler(exchange: Exchange) -> None:
        reached.append(exchange)

    with pytest.raises(BadInput):
        asyncio.run(guarded(handler)(write(x_weir_console=None)))
    assert not reached
    asyncio.run(guarded(handler)(write()))
    assert len(reached) == 1
