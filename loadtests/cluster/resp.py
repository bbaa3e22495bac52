"""The server's side of RESP 3, Valkey's protocol: parse commands, encode answers.

A command is an array of bulk strings (`*1`, `$4`, `PING`, each on a line). Inline commands are rejected. A command
beyond `MOST_ARGUMENTS`, or an argument beyond `MOST_BYTES`, is a `BadCommand` and ends the connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MAX_ARGUMENTS = 1024
MAX_BYTES = 16 * 1024 * 1024
MAX_IN_A_LINE = 64
END = b"\r\n"

Command: TypeAlias = list[bytes]


class BadCommand(Exception):
    """Not a valid command; the message says why."""


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple string: `+OK`."""

    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error; its first word is the code."""

    text: str


Answer: TypeAlias = "int | str | bytes | Simple | Failure | list[Answer] | dict[str, Answer] | None"
OK = Simple("OK")


class CommandReader:
    """An incremental parser of commands."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Command]:
        """The commands that are complete now. Raises BadCommand."""
        self._data += data
        commands = []
        while (found := self._first()) is not None:
            command, length = found
            del self._data[:length]
            commands.append(command)
        return commands

    def _first(self) -> tuple[Command, int] | None:
        """The first command and its length; None if it is incomplete."""
        count = self._count(0, b"*", MAX_ARGUMENTS)
        if count is None:
            return None
        number, at = count
        command: Command = []
        for _ in range(number):
            size = self._count(at, b"$", MAX_BYTES)
            if size is None or len(self._data) < size[1] + size[0] + len(END):
                return None
            length, begin = size
            command.append(bytes(self._data[begin : begin + length]))
            at = begin + length + len(END)
        return command, at

    def _count(self, at: int, kind: bytes, limit: int) -> tuple[int, int] | None:
        """A line of `kind` and a number: the number, and the start of the next line."""
        end = self._data.find(END, at, at + MAX_IN_A_LINE)
        if end < 0:
            if len(self._data) - at >= MAX_IN_A_LINE:
                raise BadCommand("too big a line")
            return None
        line = bytes(self._data[at:end])
        if line[:1] != kind or not line[1:].isdigit() or int(line[1:]) > limit:
            raise BadCommand(f"expected {kind.decode()!r} and a number up to {limit}")
        return int(line[1:]), end + len(END)


def encoded(answer: Answer) -> bytes:
    match answer:
        case None:
            return b"_\r\n"
        case int():
            return b":%d\r\n" % answer
        case Simple():
            return b"+%s\r\n" % answer.text.encode()
        case Failure():
            return b"-%s\r\n" % answer.text.encode()
        case list():
            return b"*%d\r\n" % len(answer) + b"".join(map(encoded, answer))
        case dict():
            return b"%%%d\r\n" % len(answer) + b"".join(encoded(each) for pair in answer.items() for each in pair)
    data = answer.encode() if isinstance(answer, str) else answer
    return b"$%d\r\n%s\r\n" % (len(data), data)
