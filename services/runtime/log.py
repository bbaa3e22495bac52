"""Logs: one JSON object per line on stdout, without blocking the event loop.

A line is encoded on the spot (about 2 us) and written by a thread, or at once if not `threaded`, as in virtual time.
Lines that cannot be written are dropped and counted. Processes on one stream write whole lines, at most PIPE_BYTES
at once. Callers never log a prompt, an answer or a key.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}
MAX_PENDING_LINES = 20_000
FLUSH_INTERVAL_S = 0.1
MAX_CACHED_FIELDS = 256
PIPE_BYTES = 4096
"""A pipe does not mix so much of one writer with that of others (PIPE_BUF of pipe(7))."""
MILLISECONDS = tuple(b".%03dZ" % millisecond for millisecond in range(1000))


class Log:
    """A service's log, safe to call from any thread if `threaded`. `clock` returns seconds since the epoch.

    `process`: the number of one of several processes that write to the same stream.
    """

    def __init__(
        self,
        service: str,
        level: str = "INFO",
        stream: BinaryIO | None = None,
        *,
        clock: Callable[[], float] = time.time,
        threaded: bool = True,
        process: int | None = None,
    ) -> None:
        self.service = service
        self.dropped_lines = 0
        self._threshold = LEVELS[level]
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._clock = clock
        self._pending: deque[bytes] = deque()
        self._put = self._pending.append if threaded else self._write_one
        self._wake = threading.Event()
        self._closing = False
        self._service = self._encode(service)
        if process is not None:
            self._service += b',"process":%d' % process
        self._shares_stream = process is not None
        self._middles: dict[tuple[str, str], bytes] = {}  # of lines: the text between time and fields
        self._second = -1
        self._second_text = b""
        self._writer = threading.Thread(target=self._write_out, name="log-writer", daemon=True) if threaded else None
        if self._writer is not None:
            self._writer.start()

    def debug(self, event: str, **fields: object) -> None:
        """A detail for the search of a fault."""
        self.write("DEBUG", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """An expected event."""
        self.write("INFO", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something is missing, and the service works without it."""
        self.write("WARNING", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something failed that should not fail."""
        self.write("ERROR", event, fields)

    def write(self, level: str, event: str, fields: dict[str, object], prefix: bytes = b"") -> None:
        """Write one line; the methods above are its short forms. `prefix`: encoded fields to put before the others."""
        try:
            middle = self._middles.get((level, event))
            if middle is None:
                middle = self._middle(level, event)
            if not middle:
                return  # below the threshold
            if len(self._pending) >= MAX_PENDING_LINES:
                self.dropped_lines += 1
                return
            now = self._clock()
            second = int(now)
            if second != self._second:
                self._new_second(second)
            time = self._second_text + MILLISECONDS[int((now - second) * 1000)]
            if prefix:
                middle += b"," + prefix
            rest = b"," + self._encode(fields)[1:] if fields else b"}"  # encoded together
            self._put(b'{"time":"%b%b%b' % (time, middle, rest))
        except (TypeError, ValueError, UnicodeEncodeError):
            self.dropped_lines += 1
        if level != "INFO":
            self._wake.set()  # the process may be about to end

    def _middle(self, level: str, event: str) -> bytes:
        """The text between time and fields, cached for up to MAX_CACHED_FIELDS events. Empty below the threshold."""
        middle = b""
        if LEVELS[level] >= self._threshold:
            level_text, event_text = level.encode("ascii"), self._encode(event)
            middle = b'","level":"%b","service":%b,"event":%b' % (level_text, self._service, event_text)
        if len(self._middles) < MAX_CACHED_FIELDS:
            self._middles[level, event] = middle
        return middle

    def _new_second(self, second: int) -> None:
        """Cache the text of a second, in UTC. In this order, for other threads."""
        self._second_text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode("ascii")
        self._second = second

    def _write_out(self) -> None:
        while not self._closing:
            self._wake.wait(FLUSH_INTERVAL_S)
            self._wake.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        batch = [self._pending.popleft() for _ in range(len(self._pending))]
        if not batch:
            return
        groups: Iterable[list[bytes]] = pieces(batch) if self._shares_stream else [batch]
        for lines in groups:
            self._write_lines(lines)

    def _write_one(self, line: bytes) -> None:
        self._write_lines([line])

    def _write_lines(self, lines: list[bytes]) -> None:
        try:
            self._stream.write(b"\n".join(lines) + b"\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.dropped_lines += len(lines)

    def close(self) -> None:
        """Write what is pending and stop the writer. A stalled stream delays this by at most one second."""
        self._closing = True
        self._wake.set()
        if self._writer is not None:
            self._writer.join(timeout=1.0)

    def capture_stdlib(self, *loggers: str) -> None:
        """Write the warnings and errors of these standard library loggers to this log."""
        for name in loggers:
            logger = logging.getLogger(name)
            logger.handlers = [_Bridge(self)]
            logger.setLevel(logging.WARNING)
            logger.propagate = False


def pieces(lines: list[bytes]) -> Iterator[list[bytes]]:
    """The lines in groups of at most PIPE_BYTES, line ends included; a longer line is alone."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and size + len(line) + 1 > PIPE_BYTES:
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line) + 1
    yield group


class _Bridge(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "ERROR" if record.levelno >= logging.ERROR else "WARNING"
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        fields: dict[str, object] = {"logger": record.name, **({"traceback": trace} if trace else {})}
        self._log.write(level, record.getMessage(), fields)
