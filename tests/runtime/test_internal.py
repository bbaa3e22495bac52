"""The token that Weir's own services show one another, and the addresses on which they listen without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.storm.config import StormSettings
from services.desk.config import DeskSettings
from services.governor.config import GovernorSettings
from services.retrieval.config import RetrievalSettings
from services.router.config import RouterSettings
from services.runtime.http import Exchange
from services.runtime.internal import TokenCheck, inner_checks, is_health, shows
from services.runtime.keepalive import Pool
from services.runtime.settings import ServiceSettings, load
from services.worker.config import WorkerSettings
from tests.console.rig import FakeWire

TOKEN = "t0ken-of-sixteen-characters"
LISTENING = {"retrieval": RetrievalSettings, "worker": WorkerSettings, "desk": DeskSettings, "storm": StormSettings}
EVERY = {**LISTENING, "router": RouterSettings, "governor": GovernorSettings}


def status(token: str = TOKEN, *, path: str = "/retrieve", method: str = "POST", listens: str = "127.0.0.1",
           **headers: str) -> int:  # fmt: skip
    sent = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
    exchange = Exchange(FakeWire(), method, path, sent)
    for check in inner_checks(listens, token=token.encode(), is_open=is_health):
        if (refusal := check(exchange, 0)) is not None:
            return refusal.status
    return 200


@pytest.mark.parametrize("shown", ["", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer ", f"Bearer {TOKEN}x",
                                   f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN} {TOKEN}", "Bearer \xe9"])  # fmt: skip
def test_without_the_whole_token_nothing_is_answered(shown: str) -> None:
    assert status(authorization=shown) == 401
    assert status() == 401


@pytest.mark.parametrize("shown", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER   {TOKEN} "])
def test_whoever_shows_the_token_may_come(shown: str) -> None:
    assert status(authorization=shown) == 200
    assert status(authorization=shown, host="retrieval.weir.svc.cluster.local") == 200


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
def test_health_needs_no_token_and_is_still_no_web_pages_business(path: str) -> None:
    assert status(path=path, method="GET") == 200
    assert status(path=path, method="GET", host="rebind.evil.example") == 421


def test_without_a_token_loopback_takes_what_is_no_web_pages() -> None:
    assert status("") == 200
    assert status("", host="rebind.evil.example:8001") == 421
    assert status("", origin="http://evil.example") == 403


def test_an_empty_token_never_matches() -> None:
    assert not shows(None, b"")
    with pytest.raises(ValueError, match="must not be empty"):
        TokenCheck(b"", is_health, ())


def test_a_pool_shows_the_token_with_every_request_and_nothing_without_one() -> None:
    assert (
        b"\r\nauthorization: Bearer abc\r\n" in Pool("http://127.0.0.1:1", max_connections=1, token=b"abc")._host_line
    )
    assert Pool("http://127.0.0.1:1", max_connections=1)._host_line == b"host: 127.0.0.1:1\r\n"


# ---- settings


def refusal(capsys: pytest.CaptureFixture[str], cls: type[ServiceSettings], **values: object) -> str:
    with pytest.raises(SystemExit) as left:
        load(cls, _env_file=None, **values)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("name", LISTENING)
def test_an_inner_service_refuses_an_address_that_others_may_reach(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cls = LISTENING[name]
    said = refusal(capsys, cls, host="0.0.0.0", metrics_host="10.0.0.5")
    for part in (
        "HOST=0.0.0.0 is not loopback",
        "METRICS_HOST=10.0.0.5 is not",
        "INTERNAL_TOKEN",
        "INNER_NETWORK=true",
    ):
        assert part in said
    assert load(cls, _env_file=None, host="0.0.0.0", internal_token=TOKEN).host == "0.0.0.0"
    assert load(cls, _env_file=None, host="0.0.0.0", inner_network=True).host == "0.0.0.0"
    refusal(capsys, cls, host="0.0.0.0", internal_token="none")


@pytest.mark.parametrize("name", EVERY)
def test_metrics_are_published_with_a_token_or_a_persons_word_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "METRICS_HOST=0.0.0.0 is not loopback" in refusal(capsys, EVERY[name], metrics_host="0.0.0.0")
    assert load(EVERY[name], _env_file=None, metrics_host="0.0.0.0", internal_token=TOKEN).shared_token


def test_a_governor_beyond_loopback_asks_for_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert "GOVERNOR_TOKENS" in refusal(capsys, GovernorSettings, host="0.0.0.0")
    refusal(capsys, GovernorSettings, host="0.0.0.0", internal_token=TOKEN)  # its clients show another one
    assert load(GovernorSettings, _env_file=None, host="0.0.0.0", governor_tokens=TOKEN).tokens
    assert load(GovernorSettings, _env_file=None, host="0.0.0.0", inner_network=True).host == "0.0.0.0"


@pytest.mark.parametrize(
    "token", ["short", "with a space in the middle", "unprintable\x01unprintable", "é" * 16, "x" * 257]
)
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused_and_not_repeated(
    token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, WorkerSettings, internal_token=token)
    assert "INTERNAL_TOKEN: a token has" in said
    assert token not in said


def test_the_token_may_stand_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    assert "cannot be read" in refusal(capsys, WorkerSettings, internal_token_file=file)
    for content in ("", "\n", "short\n"):
        file.write_text(content)
        said = refusal(capsys, WorkerSettings, internal_token_file=file, kv_tokens=3)
        assert f"INTERNAL_TOKEN_FILE: {file}" in said
        assert "KV_TOKENS=3" in said  # all faults at once
    file.write_text(f"{TOKEN}\n")
    assert load(WorkerSettings, _env_file=None, internal_token_file=file).shared_token == TOKEN.encode()
    both = load(WorkerSettings, _env_file=None, internal_token_file=file, internal_token="another-" + TOKEN)
    assert both.shared_token == b"another-" + TOKEN.encode()


def test_the_word_none_is_no_token() -> None:
    assert load(WorkerSettings, _env_file=None, internal_token="none").shared_token == b""


def test_an_admin_token_has_sixteen_characters(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, RouterSettings, admin_token="s3cret")
    assert "ADMIN_TOKEN: a token has at least 16 characters" in said
    assert "s3cret" not in said
