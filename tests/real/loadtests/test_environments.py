"""Environments of the gateways: what a command that fails says is its reason."""

from __future__ import annotations

from loadtests.runs.matrix import environments


def test_the_last_error_of_a_failed_command_is_its_reason() -> None:
    assert environments._run(["sh", "-c", "echo ERROR: one >&2; echo ERROR: two >&2; exit 1"]) == "ERROR: two"
    assert environments._run(["sh", "-c", "echo noise >&2; exit 1"]) == "noise"
    assert environments._run(["true"]) == ""
