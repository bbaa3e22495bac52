"""A test that is marked `alone` runs while no other does, and is not passed for ever by those that may run together."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.alone import Floor

Wait = Callable[[Callable[[], bool]], None]


@pytest.fixture
def floor(tmp_path: Path) -> Floor:
    files = [tmp_path / name for name in ("turnstile", "floor")]
    for file in files:
        file.touch()
    return Floor(*files)


class Guest(threading.Thread):
    """Enters, stays until it is let go, and leaves."""

    def __init__(self, floor: Floor, *, alone: bool) -> None:
        super().__init__(daemon=True)
        self._floor, self._alone = floor, alone
        self.inside, self.go = threading.Event(), threading.Event()

    def run(self) -> None:
        with self._floor.held(alone=self._alone):
            self.inside.set()
            self.go.wait(60)


def test_many_stand_there_together(floor: Floor) -> None:
    with ExitStack() as places:
        for _ in range(5):
            places.enter_context(floor.held(alone=False))


def test_one_alone_waits_for_the_others_and_who_comes_later_waits_for_it(floor: Floor, wait_until: Wait) -> None:
    first, alone, later = Guest(floor, alone=False), Guest(floor, alone=True), Guest(floor, alone=False)
    first.start()
    wait_until(first.inside.is_set)
    alone.start()
    wait_until(lambda: _taken(floor))  # it stands in the turnstile
    later.start()
    assert not alone.inside.is_set()
    assert not later.inside.is_set()
    first.go.set()
    wait_until(alone.inside.is_set)
    assert not later.inside.wait(0.2)
    alone.go.set()
    wait_until(later.inside.is_set)
    later.go.set()


def _taken(floor: Floor) -> bool:
    with floor._turnstile.open("rb") as turnstile:
        try:
            fcntl.flock(turnstile, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_place_is_given_back_when_its_test_fails(floor: Floor) -> None:
    with pytest.raises(ZeroDivisionError), floor.held(alone=True):
        raise ZeroDivisionError
    with floor.held(alone=True):
        pass
