"""What docker-compose.engines.yml promises: confined, inside alone, at exact tags, and found by the router."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from services.router.workers.workersfile import read

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.engines.yml").read_text(encoding="utf-8"))
MAIN: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

every_engine = pytest.mark.parametrize("name", sorted(SERVICES))


def words(name: str) -> list[str]:
    """The command, with `--a=b` as two words."""
    return [part for word in SERVICES[name]["command"] for part in word.split("=", 1)]


def test_no_engine_replaces_a_part_of_the_stack_and_what_they_share_is_the_same() -> None:
    assert not set(SERVICES) & set(MAIN["services"])
    assert all(MAIN["networks"][name] == network for name, network in COMPOSE["networks"].items())
    assert set(COMPOSE["volumes"]) <= set(MAIN["volumes"])


@every_engine
def test_an_engine_starts_with_its_profile_alone(name: str) -> None:
    assert SERVICES[name]["profiles"] == [name]


@every_engine
def test_an_engine_is_confined_and_reaches_nothing_outside(name: str) -> None:
    service = SERVICES[name]
    assert service["networks"] == ["fleet"]
    assert "ports" not in service
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert "env_file" not in service


@every_engine
def test_an_image_has_an_exact_tag_or_must_be_named(name: str) -> None:
    image = SERVICES[name]["image"]
    named = re.fullmatch(r"\$\{[A-Z_]+:-[a-z.-]+:set-[A-Z_]+\}", image)
    assert named or re.fullmatch(r"[a-z-]+/[a-z-]+:v[0-9]+\.[0-9]+\.[0-9]+", image)


@every_engine
def test_the_router_finds_it_with_as_many_slots_as_it_batches(name: str) -> None:
    (worker,) = read(ROOT / "docs" / "engines" / f"workers.{name}.yaml")
    said = words(name)
    address = urlsplit(worker.url)
    assert address.hostname == name
    assert str(address.port) == said[said.index("--port") + 1]
    batch = "--max-num-seqs" if name == "vllm" else "--parallel"
    assert str(worker.slots) == said[said.index(batch) + 1]
    assert f":{address.port}/" in SERVICES[name]["healthcheck"]["test"][-1]
