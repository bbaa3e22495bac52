"""A port that is free now and in a moment, and who holds one that is not."""

from __future__ import annotations

import socket

import pytest

from services.cli import ports
from services.cli.errors import LabError
from services.cli.ports import EPHEMERAL_RANGE, free_port, is_free

LOOPBACK = "127.0.0.1"


@pytest.mark.sockets
def test_a_free_port_is_below_those_that_kernels_take_for_outgoing_connections() -> None:
    assert {free_port() for _ in range(50)} <= set(EPHEMERAL_RANGE)
    assert EPHEMERAL_RANGE.stop <= 32_768


@pytest.mark.sockets
def test_what_somebody_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    held = free_port()
    monkeypatch.setattr(ports, "EPHEMERAL_RANGE", range(held, held + 1))
    with socket.create_server((LOOPBACK, held)):
        assert not is_free(LOOPBACK, held)
        with pytest.raises(LabError, match=f"No port from {held} to {held} is free on {LOOPBACK}"):
            free_port()
    assert free_port() == held
