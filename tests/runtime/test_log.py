"""A line is one JSON object; what cannot be written costs lines, and they are counted."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from typing import Any

import pytest

from services.core.outcome import Outcome
from services.runtime.log import MAX_PENDING_LINES, PIPE_BYTES, Log


def lines_of(stream: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_when_who_and_what_and_then_its_fields() -> None:
    stream = io.BytesIO()
    log = Log('odd "service"\n', stream=stream, threaded=True)
    log.info('said "no"\n', outcome=Outcome.YIELD, ms=1.5, nothing=None, text="é\u2028")
    log.warning("no fields")
    log.write("INFO", "begun", {"late": 2}, b'"early":"1"')
    log.write("INFO", "begun", {}, b'"early":"1"')
    log.close()
    first, second, third, fourth = lines_of(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "INFO", "service": 'odd "service"\n', "event": 'said "no"\n',
        "outcome": "yield", "ms": 1.5, "nothing": None, "text": "é\u2028",
    }  # fmt: skip
    assert list(second) == ["time", "level", "service", "event"]
    assert list(third.items())[3:] == [("event", "begun"), ("early", "1"), ("late", 2)]
    assert list(fourth.items())[3:] == [("event", "begun"), ("early", "1")]


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.BytesIO()
    log = Log("test", "WARNING", stream, threaded=True)
    log.debug("detail")
    log.info("as it should be")
    log.error("not so")
    log.close()
    assert [line["event"] for line in lines_of(stream)] == ["not so"]


def test_what_cannot_be_encoded_or_waits_too_long_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    log = Log("test", stream=stream, threaded=True)
    log.info("bad", text="\ud800")
    assert log.dropped_lines == 1
    monkeypatch.setattr(log, "_flush", lambda: None)  # a stream that stalls
    for number in range(MAX_PENDING_LINES + 5):
        log.info("many", number=number)
    assert log.dropped_lines == 6
    monkeypatch.undo()
    log.close()
    assert len(lines_of(stream)) == MAX_PENDING_LINES


def test_a_stream_that_breaks_costs_lines_and_nothing_else() -> None:
    stream = io.BytesIO()
    stream.close()
    log = Log("test", stream=stream, threaded=True)
    log.info("nobody reads this")
    log.close()
    assert log.dropped_lines == 1


def test_the_standard_librarys_warnings_go_the_same_way() -> None:
    stream = io.BytesIO()
    log = Log("test", stream=stream, threaded=True)
    log.capture_stdlib("tests.somebody")
    logging.getLogger("tests.somebody").info("not this")
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("tests.somebody").exception("it broke")
    log.close()
    (line,) = lines_of(stream)
    assert (line["level"], line["event"], line["logger"]) == ("ERROR", "it broke", "tests.somebody")
    assert "RuntimeError: broken" in line["traceback"]


def test_without_a_thread_each_line_is_written_where_it_happens_and_at_the_time_of_its_clock() -> None:
    stream, threads = io.BytesIO(), threading.active_count()
    now = [1_000_000_000.25]
    log = Log("test", stream=stream, clock=lambda: now[0], threaded=False)
    assert threading.active_count() == threads
    log.info("first")
    assert [line["time"] for line in lines_of(stream)] == ["2001-09-09T01:46:40.250Z"]
    now[0] += 1.5
    log.warning("second")
    assert [line["time"] for line in lines_of(stream)][1:] == ["2001-09-09T01:46:41.750Z"]
    log.close()
    assert len(lines_of(stream)) == 2


def test_without_a_thread_what_cannot_be_written_is_dropped_and_counted() -> None:
    stream = io.BytesIO()
    log = Log("test", stream=stream, threaded=False)
    stream.close()
    log.info("lost")
    log.info("lost as well")
    assert log.dropped_lines == 2


def test_one_of_several_processes_says_which_it_is() -> None:
    stream = io.BytesIO()
    log = Log("router", stream=stream, process=3)
    log.info("listening", port=1)
    log.close()
    (line,) = lines_of(stream)
    assert list(line.items())[2:] == [("service", "router"), ("process", 3), ("event", "listening"), ("port", 1)]


class Writes(io.BytesIO):
    """Remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, data: Any) -> int:
        self.sizes.append(len(data))
        return super().write(data)


def test_processes_that_share_a_pipe_write_whole_lines_in_small_pieces() -> None:
    stream = Writes()
    log = Log("router", stream=stream, threaded=True, process=0)
    for number in range(200):
        log.info("many", number=number, text="x" * 100)
    log.info("long", text="y" * PIPE_BYTES)
    log.info("last")
    log.close()
    assert [line["event"] for line in lines_of(stream)] == ["many"] * 200 + ["long", "last"]
    assert len([size for size in stream.sizes if size > PIPE_BYTES]) == 1, "the long line, alone"
