"""The watchdog's arithmetic: what counts as standing still."""

from __future__ import annotations

import signal

from services.runtime.log import Log
from services.runtime.watchdog import Standstill, watched
from tests.virtual import run


def test_the_limit_is_reached_by_seconds_without_a_turn() -> None:
    standstill = Standstill(limit_s=10.0, every_s=1.0, now=0.0)
    assert not standstill.look(1.0, turns=1)
    assert [standstill.look(now, turns=1) for now in (5.0, 7.0, 9.0, 10.0, 11.0)] == [False] * 5
    assert not standstill.look(12.0, turns=2), "it turned"
    found = [standstill.look(13.0 + second, turns=2) for second in range(10)]
    assert found == [False] * 9 + [True]


def test_a_process_that_was_stopped_has_not_stood_still() -> None:
    standstill = Standstill(limit_s=10.0, every_s=1.0, now=0.0)
    standstill.look(1.0, turns=1)
    assert not standstill.look(3601.0, turns=1)
    assert standstill.seconds == 2.0, "an hour of sleep is counted as two of its looks, at most"


def test_without_a_limit_nothing_is_watched() -> None:
    before = signal.getitimer(signal.ITIMER_PROF)

    async def main() -> None:
        log = Log("test")
        with watched(0.0, log):
            assert signal.getitimer(signal.ITIMER_PROF) == before
        log.close()

    run(main())
