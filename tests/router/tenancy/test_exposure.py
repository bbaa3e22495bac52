"""Lab mode and example keys: where they are allowed, and that the router does not start anywhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.router.config import RouterSettings
from services.router.tenancy.keys import EXAMPLE_KEYS
from services.router.tenancy.tenants import FileTenants
from services.router.tenancy.tenantsfile import read
from services.runtime.addresses import is_loopback
from services.runtime.apikey import new_key
from services.runtime.settings import load

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "tenants.example.yaml"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "[::1]", "::ffff:127.0.0.1", "0:0:0:0:0:0:0:1"],
)
def test_only_this_machine_reaches_these(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "[::]", "10.0.0.5", "192.168.1.1", "169.254.1.1", "::ffff:10.0.0.5", "fe80::1", "router",
     "localhost.example.org", "127.0.0.1.example.org", "0x7f.1", "127.1", "", " "],
)  # fmt: skip
def test_others_may_reach_these_or_nobody_knows(host: str) -> None:
    assert not is_loopback(host)


def settings(**values: Any) -> RouterSettings:
    return load(RouterSettings, _env_file=None, **values)


def refusal(capsys: pytest.CaptureFixture[str], **values: Any) -> str:
    with pytest.raises(SystemExit) as left:
        settings(**values)
    assert left.value.code == 2
    return capsys.readouterr().err


def listed(file: Path, key: str) -> Path:
    file.write_text(yaml.safe_dump({"tenants": [{"id": "acme", "keys": [key]}]}))
    return file


def test_without_a_tenants_file_the_router_listens_on_loopback_or_in_a_lab_network_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert settings().tenants_file is None
    assert settings(host="0.0.0.0", lab_network=True).tenants_file is None
    said = refusal(capsys, host="0.0.0.0")
    for part in ("HOST=0.0.0.0 is not loopback", "TENANTS_FILE", "HOST=127.0.0.1", "LAB_NETWORK=true"):
        assert part in said


def test_with_keys_of_its_own_it_listens_anywhere(tmp_path: Path) -> None:
    file = listed(tmp_path / "tenants.yaml", new_key()[1])
    assert settings(host="0.0.0.0", tenants_file=file).tenants_file == file


def test_with_a_key_that_everybody_has_read_it_listens_in_a_lab_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert settings(tenants_file=EXAMPLE).tenants_file == EXAMPLE
    assert settings(host="0.0.0.0", lab_network=True, tenants_file=EXAMPLE).tenants_file == EXAMPLE
    said = refusal(capsys, host="0.0.0.0", tenants_file=EXAMPLE)
    for part in ("demo, acme, nightly in TENANTS_FILE still have the example keys", "weir keys new", "LAB_NETWORK"):
        assert part in said


def test_one_example_key_beside_good_ones_is_enough_to_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tenants.yaml"
    example = yaml.safe_load(EXAMPLE.read_text())["tenants"][1]["keys"][0]
    entries = [{"id": "good", "keys": [new_key()[1]]}, {"id": "half", "keys": [new_key()[1], example]}]
    file.write_text(yaml.safe_dump({"tenants": entries}))
    said = refusal(capsys, host="10.1.2.3", tenants_file=file)
    assert "half in TENANTS_FILE still have" in said
    assert "good" not in said


def test_every_fault_of_the_file_is_told_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text("tenants: [{id: other, keys: [weir_secret]}, {id: a, slo_ms: 500}]")
    said = refusal(capsys, tenants_file=file)
    for part in (str(file), "tenants[0] (other), id: this name is reserved", "tenants[0] (other), keys: number 0 is a",
                 "tenants[1] (a), keys: is missing"):  # fmt: skip
        assert part in said
    assert "secret" not in said


def test_the_longest_deadline_bounds_what_tenants_are_promised(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, tenants_file=EXAMPLE, default_slo_ms=1000, max_deadline_ms=30_000)
    assert "tenants[2] (nightly), slo_ms: 60000 is more than MAX_DEADLINE_MS, 30000" in said


# ---- the example


def test_the_example_opens_to_the_keys_that_are_written_in_it_and_to_no_other() -> None:
    tenants = FileTenants(EXAMPLE)
    written = re.findall(r"# (weir_example_\w+)", EXAMPLE.read_text(encoding="utf-8"))
    assert sorted(written) == sorted(EXAMPLE_KEYS)
    found = {key: tenants.identify({b"authorization": b"Bearer " + key.encode()}.get, None).id for key in written}
    assert found == {f"weir_example_{id}": id for id in tenants.ids()}
    assert read(EXAMPLE).with_example_keys == tenants.ids()


def test_the_example_shows_every_word_and_has_a_rate() -> None:
    shown = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["tenants"]
    fields = type(read(EXAMPLE).tenants[0]).model_fields
    words = {field.alias or name for name, field in fields.items()}
    assert {word for entry in shown for word in entry} == words
    assert any("rate" in entry for entry in shown)


def compose(tmp_path: Path, **given: str) -> dict[str, Any]:
    """HOST and what else decides, as compose gives it to the router's container with these variables set."""
    router = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]["router"]
    (address,) = {port.split("}:")[0] + "}" for port in router["ports"]}
    assert address == router["environment"]["PUBLISHED_ADDRESS"] == "${ROUTER_ADDRESS:-127.0.0.1}"
    token = tmp_path / "token"
    token.write_text("t0ken-of-sixteen-characters")
    return {
        "host": router["environment"]["HOST"],
        "metrics_host": router["environment"]["METRICS_HOST"],
        "lab_network": router["environment"]["LAB_NETWORK"],
        "published_address": given.get("ROUTER_ADDRESS") or "127.0.0.1",
        "internal_token_file": token,
    }


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.2", "[::1]", "localhost"])
def test_in_compose_lab_mode_and_example_keys_are_for_a_port_on_loopback(tmp_path: Path, address: str) -> None:
    given = compose(tmp_path, ROUTER_ADDRESS=address)
    assert settings(**given).tenants_file is None
    assert settings(**given, tenants_file=EXAMPLE).tenants_file == EXAMPLE


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]", "192.168.1.4", "box.example.org"])
def test_in_compose_a_published_router_needs_keys_of_its_own(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = compose(tmp_path, ROUTER_ADDRESS=address)
    for part in (f"PUBLISHED_ADDRESS={address} is not loopback", "TENANTS_FILE", "ROUTER_ADDRESS=127.0.0.1"):
        assert part in refusal(capsys, **given)
    assert "still have the example keys" in refusal(capsys, **given, tenants_file=EXAMPLE)
    file = listed(tmp_path / "tenants.yaml", new_key()[1])
    assert settings(**given, tenants_file=file).tenants_file == file
