"""Settings of the governor: what cannot be used is refused at the start, all of it at once."""

from __future__ import annotations

import io
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from services.governor import app
from services.governor.config import GovernorSettings, deprecated
from services.governor.gate import GovernorLimits
from services.runtime.log import Log
from services.runtime.settings import load


def settings(**chosen: Any) -> GovernorSettings:
    return GovernorSettings(_env_file=None, **chosen)  # type: ignore[call-arg]  # pydantic-settings' own argument


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a governor says that is started with this environment, and leaves at once."""
    monkeypatch.chdir(tmp_path)  # a developer's .env is not read

    def show(**environment: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            load(GovernorSettings)
        assert left.value.code == 2
        return capsys.readouterr().err

    return show


def test_all_faults_are_told_at_once(deferred: Any) -> None:
    sent = deferred(
        GOVERNOR_MAX_INFLIGHT="0",
        GOVERNOR_BACKEND="gpu",
        GOVERNOR_UPSTREAM_URL="127.0.0.1:8000",
        GOVERNOR_IDLE_S="0",
        GOVERNOR_LINE_BYTES="many",
        GOVERNOR_TOKENS="short",
    )
    assert sent.startswith("6 setting(s) cannot be used")
    for name in ("MAX_INFLIGHT", "BACKEND", "UPSTREAM_URL", "IDLE_S", "LINE_BYTES", "TOKENS"):
        assert f"GOVERNOR_{name}" in sent


def test_a_word_that_is_too_short_is_refused_and_not_repeated(deferred: Any) -> None:
    sent = deferred(GOVERNOR_TOKENS="a-word-that-is-long-enough,hunter2")
    assert "16 characters" in sent
    assert "hunter2" not in sent
    assert "long-enough" not in sent


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("", set()),
        (" , ", set()),
        ("0123456789abcdef", {"0123456789abcdef"}),
        (" 0123456789abcdef , fedcba9876543210,", {"0123456789abcdef", "fedcba9876543210"}),
    ],
)
def test_words_stand_with_commas_between(given: str, tokens: set[str]) -> None:
    assert settings(governor_tokens=given).tokens == tokens


def test_a_connection_must_be_able_to_send_one_whole_payload_and_a_line_and_all_its_names(deferred: Any) -> None:
    least = 52_428_800 + 262_144 + 7 * 256 + 4096
    assert settings(governor_connection_bytes=least).governor_connection_bytes == least
    assert f"{least:,}" in deferred(GOVERNOR_CONNECTION_BYTES=str(least - 1))


def test_all_connections_together_may_hold_what_one_may(deferred: Any) -> None:
    assert settings(governor_total_bytes=67_108_864).governor_total_bytes == 67_108_864
    assert "GOVERNOR_TOTAL_BYTES must be at least" in deferred(GOVERNOR_TOTAL_BYTES="67108863")


def test_what_is_set_is_what_binds() -> None:
    """Each bound by its own name: a swap would be found here."""
    chosen = settings(
        governor_line_bytes=2000, governor_jobs=3, governor_connection_bytes=60_000_000,
        governor_total_bytes=70_000_000, governor_idle_s=5,
    )  # fmt: skip
    assert app.bounds(chosen) == GovernorLimits(2000, 3, 60_000_000, 70_000_000, 5.0)
    assert app.bounds(settings()) == GovernorLimits()


@pytest.mark.parametrize(
    ("given", "every_s", "old"),
    [
        ({}, 10.0, ()),
        ({"GOVERNOR_KEEPALIVE_S": "3"}, 3.0, ()),
        ({"GOVERNOR_WORD_EVERY_S": "4"}, 4.0, ("GOVERNOR_WORD_EVERY_S",)),
        ({"GOVERNOR_KEEPALIVE_S": "3", "GOVERNOR_WORD_EVERY_S": "4"}, 3.0, ("GOVERNOR_WORD_EVERY_S",)),
    ],
)
def test_the_old_name_of_the_keepalive_is_read_for_one_release(
    given: dict[str, str], every_s: float, old: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    chosen = settings()
    assert chosen.governor_keepalive_s == every_s
    assert settings(governor_keepalive_s=5.0).governor_keepalive_s == 5.0
    stream = io.BytesIO()
    log = Log("test", stream=stream)
    app.build(chosen, log=log)
    log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["level"], line["setting"], line["replacement"]) for line in lines] == [
        ("WARNING", name, "GOVERNOR_KEEPALIVE_S") for name in old
    ]


def test_the_old_name_is_also_read_from_the_env_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("GOVERNOR_WORD_EVERY_S=4\n", encoding="utf-8")
    assert GovernorSettings().governor_keepalive_s == 4.0
    assert deprecated() == {"GOVERNOR_WORD_EVERY_S": "GOVERNOR_KEEPALIVE_S"}


def test_no_more_connections_are_held_than_there_are_descriptors_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed, max_bytes in ((64, 36), (10, 1), (65_536, 500), (resource.RLIM_INFINITY, 500)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        assert app.max_connections(settings(max_connections=500, governor_max_inflight=4)) == max_bytes
