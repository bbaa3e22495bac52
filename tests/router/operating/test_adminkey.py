"""Guesses at the admin token: slowed, logged, and bounded; on a clock of the test's own."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from services.router.operating.adminkey import GUESS_EVERY_S, GUESSES, AdminKey
from services.runtime.errors import Unauthorized, WeirError
from services.runtime.http import Exchange
from services.runtime.log import Log
from tests.console.rig import FakeWire
from tests.virtual import run

TOKEN = b"the-right-token-of-the-operator"


def exchange(shown: str | None) -> Exchange:
    headers = [(b"host", b"localhost")] + ([] if shown is None else [(b"authorization", shown.encode())])
    return Exchange(FakeWire(), "GET", "/admin/state", headers)


class Knocking:
    """Somebody at one listener, and the lines it left."""

    def __init__(self) -> None:
        self.stream = io.BytesIO()
        self.log = Log("router", stream=self.stream)
        self.key = AdminKey("0.0.0.0", TOKEN, self.log)

    def status(self, shown: str | None) -> int:
        try:
            self.key.check(exchange(shown))
        except WeirError as error:
            return error.status
        return 200

    def lines(self) -> list[dict[str, object]]:
        self.log.close()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


RIGHT = f"Bearer {TOKEN.decode()}"


def test_after_some_guesses_a_listener_looks_at_no_token_for_a_while() -> None:
    async def main() -> None:
        there = Knocking()
        assert [there.status(f"Bearer guess-{number}") for number in range(GUESSES)] == [401] * GUESSES
        assert there.status("Bearer another") == 429
        assert there.status(RIGHT) == 429  # or a guess would be told from the token by its status
        await asyncio.sleep(GUESS_EVERY_S)
        assert there.status(RIGHT) == 200
        assert there.status("Bearer another") == 401
        assert there.status(RIGHT) == 429

    run(main())


def test_a_flood_of_guesses_is_bounded_in_tries_and_in_lines() -> None:
    async def main() -> None:
        there = Knocking()
        tried = 0
        for _ in range(600):  # ten a second, for a minute
            tried += sum(there.status(f"Bearer guess-{number}") == 401 for number in range(10))
            await asyncio.sleep(0.1)
        assert tried <= GUESSES + 60 / GUESS_EVERY_S + 1
        lines = there.lines()
        assert len(lines) == tried
        assert {line["event"] for line in lines} == {"wrong admin token"}
        assert "guess-" not in str(lines)

    run(main())


def test_who_shows_no_token_has_not_guessed() -> None:
    async def main() -> None:
        there = Knocking()
        assert {there.status(None) for _ in range(10 * GUESSES)} == {401}
        assert there.status(RIGHT) == 200
        assert there.lines() == []

    run(main())


def test_too_many_guesses_are_told_when_to_come_back() -> None:
    async def main() -> None:
        there = Knocking()
        for _ in range(GUESSES):
            with pytest.raises(Unauthorized):
                there.key.check(exchange("Bearer wrong"))
        with pytest.raises(WeirError) as refused:
            there.key.check(exchange("Bearer wrong"))
        assert refused.value.code == "too_many_attempts"
        assert 0 < (refused.value.details.retry_hint_ms or 0) <= 1000 * GUESS_EVERY_S + 1

    run(main())
