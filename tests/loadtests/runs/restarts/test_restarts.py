"""How a run that replaces processes counts what is lost."""

from __future__ import annotations

from loadtests.load.keepalive import Load
from loadtests.report.result import markdown
from loadtests.runs.judged import has_held
from loadtests.runs.restarts.__main__ import result


def counted(*, answered: int = 1, **lost: int) -> Load:
    load = Load("http://127.0.0.1:1", connections=1)
    load.answered, load.sent = answered, answered + sum(lost.values())
    load.lost.update(lost)
    return load


def test_a_run_has_held_if_nothing_was_lost_and_all_processes_left_by_themselves() -> None:
    assert has_held(result(counted(), 2, 2, 0))
    assert not has_held(result(counted(cut=1), 2, 2, 0))
    assert not has_held(result(counted(), 2, 2, 1))
    assert not has_held(result(counted(), 4, 2, 0))
    assert not has_held(result(counted(answered=0), 2, 2, 0))


def test_the_page_tells_each_kind_of_loss() -> None:
    page = markdown(result(counted(answered=2, cut=1), 100, 100, 0), command="a command", machine="a machine")
    assert "Not held: 1 of 3 requests lost in 100 replaced processes." in page
    assert "| lost: cut | 1 | ≤ 0 | **missed** |" in page


def test_what_gives_a_time_to_retry_is_not_lost() -> None:
    load = counted()
    load._count(429, b"http/1.1 429 x\r\nretry-after-ms: 50\r\n\r\n", False)
    load._count(503, b"http/1.1 503 x\r\n\r\n", False)
    assert (load.refused, load.lost) == ({429: 1}, {"status 503": 1})
