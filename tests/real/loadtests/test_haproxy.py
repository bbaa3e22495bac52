"""HAProxy itself reads the configuration that it would be given."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadtests.runs.peers.gateways import (
    GATEWAYS,
    Deadlines,
    Gateway,
    haproxy,
    values,
)
from tests.loadtests.runs.peers.made import a_stand

DEADLINES = Deadlines(longest_ms=3000, shortest_ms=300)
OTHERS = [gateway for gateway in GATEWAYS if gateway.build is not None]
PROXIES = [gateway for gateway in OTHERS if gateway.name.startswith("HAProxy")]


def command_of(gateway: Gateway, folder: Path) -> tuple[list[str], dict[str, str]]:
    assert gateway.build is not None
    made = gateway.build(Path("/bin/the-program"), values(a_stand(folder), DEADLINES, 6001, 6002), folder)
    return list(made.line), dict(made.env or {})


@pytest.mark.parametrize("gateway", PROXIES, ids=lambda gateway: gateway.name)
@pytest.mark.skipif(haproxy() is None, reason="haproxy is not installed")
def test_haproxy_itself_accepts_the_configuration(gateway: Gateway, tmp_path: Path) -> None:
    line, env = command_of(gateway, tmp_path)
    checked = subprocess.run(
        [str(haproxy()), "-c", *line[2:]], env=env, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    assert "warning" not in checked.stderr.lower()
