"""A stack that runs already: what it says of itself is what is played on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from loadtests.cluster.processes import StandError
from loadtests.runs.matrix import given

ROUTER, WORKERS = "http://127.0.0.1:8000", ["http://127.0.0.1:8010", "http://127.0.0.1:8011"]


def test_its_shape_is_the_workers_own_word_and_its_metrics_listen_a_thousand_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given, "get", lambda url: json.dumps({"slots": 4, "step_ms": 5.0, "full_step_ms": 20.0}))
    monkeypatch.setattr(given, "_listening", lambda port: 40_000 + port)
    stand = asyncio.run(given.running(ROUTER, WORKERS, tmp_path))
    assert (stand.shape.workers, stand.shape.slots, stand.shape.step_ms) == (2, 4, 20.0)
    assert stand.url == ROUTER
    assert [server.metrics_url for server in stand.servers] == [
        f"http://127.0.0.1:{port}/metrics" for port in (9010, 9011, 9000)
    ]
    assert [server.process.pid for server in stand.servers] == [48_010, 48_011, 48_000]


def test_a_port_on_which_nothing_listens_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given.psutil, "net_connections", lambda kind: [])
    with pytest.raises(StandError, match="listens on port 8000"):
        given._listening(8000)
