"""The clients of the field, unchanged, before a router, a Weir worker and a recording server, as processes.

Skipped where a client is not installed: `python -m tests.real.clients` installs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.clients.operations import CHECKS
from tests.real.clients.recorder import recorder
from tests.real.clients.stand import Running, running
from tests.real.clients.table import SCRIPTED, Client

DONE = [(client, operation) for client in SCRIPTED for operation in client.operations]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with recorder() as url, running(url, tmp_path_factory.mktemp("clients")) as made:
        yield made


@pytest.fixture(scope="module")
def found(stand: Running) -> dict[str, dict[str, Any]]:
    """What the clients have found so far, by client: each runs once, with all its operations."""
    return {}


@pytest.mark.parametrize(("client", "operation"), DONE, ids=[f"{client.name}-{name}" for client, name in DONE])
def test_a_client_of_the_field_works_unchanged(
    stand: Running, found: dict[str, dict[str, Any]], client: Client, operation: str
) -> None:
    if why := client.missing():
        pytest.skip(why)
    if client.name not in found:
        found[client.name] = stand.operations(client)
        stand.until_nobody_is_served()
    CHECKS[operation](found[client.name][operation])
