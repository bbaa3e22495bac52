"""Whom the users may ask, and what they show there."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.users.access import Access, access, read_keys

HERE, THERE = "http://127.0.0.1:8000", "http://example.org"


def keys_file(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_tenant_shows_its_name_and_its_key_where_there_is_one(tmp_path: Path) -> None:
    path = keys_file(tmp_path, "# ours\n\nanna: weir_a\n ben : weir_b \n")
    allowed = access(False, str(path))
    assert allowed.headers("anna") == {"X-Tenant": "anna", "Authorization": "Bearer weir_a"}
    assert allowed.headers("ben")["Authorization"] == "Bearer weir_b"
    assert Access().headers("anna") == {"X-Tenant": "anna"}
    assert "weir_a" not in repr(allowed)


def test_a_tenant_without_a_key_among_others_that_have_one_is_told_before_any_load(tmp_path: Path) -> None:
    allowed = access(False, str(keys_file(tmp_path, "anna: weir_a")))
    assert allowed.refusal(HERE, ["anna"]) == ""
    assert allowed.refusal(HERE, ["anna", "crowd"]) == "the file of keys has none for crowd"
    assert Access().refusal(HERE, ["anna", "crowd"]) == ""


@pytest.mark.parametrize(
    "text", ["anna", "anna: a key", "anna: a\nanna: b", "an na: a", ": a", "anna:", "anna: \u00e9"]
)
def test_a_file_of_keys_that_is_none_is_a_fault_that_shows_no_key(text: str, tmp_path: Path) -> None:
    path = keys_file(tmp_path, text)
    with pytest.raises(ValueError, match="keys") as found:
        read_keys(path)
    assert "a key" not in str(found.value)
    assert access(False, str(path)).refusal(HERE) == str(found.value)


def test_a_file_of_keys_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "No such file" in access(False, str(tmp_path / "none")).refusal(HERE)


def test_another_machine_is_loaded_only_where_that_is_asked_for_and_with_a_warning() -> None:
    assert "--beyond-this-machine" in Access().refusal(THERE)
    assert Access(beyond=True).refusal(THERE) == ""
    assert "is it yours" in Access(beyond=True).warning(THERE)
    assert Access(beyond=True).warning(HERE) == ""


def test_keys_that_would_travel_in_the_open_are_warned_of() -> None:
    keyed = Access(beyond=True, keys={"anna": "weir_a"})
    assert "unencrypted" in keyed.warning(THERE)
    assert "unencrypted" not in keyed.warning("https://example.org")
