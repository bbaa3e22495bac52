"""Environments of the gateways: what a command that fails says is its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.runs.matrix import environments


def test_the_last_error_of_a_failed_command_is_its_reason() -> None:
    assert environments._run(["sh", "-c", "echo ERROR: one >&2; echo ERROR: two >&2; exit 1"]) == "ERROR: two"
    assert environments._run(["sh", "-c", "echo noise >&2; exit 1"]) == "noise"
    assert environments._run(["true"]) == ""


def test_an_unknown_name_is_told_with_the_known_ones_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = environments.Place(tmp_path, tmp_path / "made")
    assert environments.make_named(["a", "x"], {"a": "package-a", "b": "package-b"}, place) == 2
    assert "there is no x; there are a, b" in capsys.readouterr().err
    assert not place.environments.exists()


def test_a_program_that_cannot_be_made_is_a_failure_and_the_others_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(environments, "make", lambda name, say, place: tried.append(name) or name != "package-a")
    known = {"a": "package-a", "b": "package-b"}
    place = environments.Place(tmp_path, tmp_path)
    assert environments.make_named([], known, place) == 1
    assert tried == ["package-a", "package-b"]
    assert environments.make_named(["b"], known, place) == 0
