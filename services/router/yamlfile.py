"""Reads YAML files written by people: whole, bounded, and without YAML's silent surprises.

Duplicate keys in a mapping are a fault; the usual loaders keep the last. Faults name a line and never quote it, since
it may hold a secret. Values are built directly from the parser's events: for 10,000 tenants the tree of nodes would
cost five times more than the rest. Bounds keep the time proportional to the file's size: on aliases that multiply
("billion laughs", CWE-776), on digits (CVE-2020-10735; YAML 1.1 has numbers in base 60), and on directives, which
libyaml compares with one another.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

LARGEST_FILE_BYTES = 16 * 1024 * 1024
DEEPEST = 32
LONGEST_NUMBER_CHARS = 128  # also for dates and truth values; longer plain scalars are text
MAX_DIRECTIVES = 8
VALUES_PER_BYTE = 10  # including those that aliases stand for
FREE_VALUES = 100_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # with libyaml ten times faster


class Unreadable(ValueError):
    """The fault of a file, in one line."""


def read_yaml(path: Path) -> Any:
    """The content of the file: plain values, with text as keys. Raises Unreadable."""
    try:
        with path.open("rb") as file:
            before = state(file.fileno())
            content = file.read(LARGEST_FILE_BYTES + 1)
            after = state(file.fileno())
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    if before != after:  # the first half of a list is valid YAML too
        raise Unreadable("changed while it was read: reload it once it is complete")
    if len(content) > LARGEST_FILE_BYTES:
        raise Unreadable(f"is larger than {LARGEST_FILE_BYTES} bytes")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Unreadable("is not YAML: it is UTF-16, and UTF-8 was expected")
    if (b"\n" + content.replace(b"\r", b"\n")).count(b"\n%") > MAX_DIRECTIVES:
        raise Unreadable(f"has more than {MAX_DIRECTIVES} lines that begin with %")
    try:
        return _Document(content).read()
    except yaml.MarkedYAMLError as error:
        raise Unreadable(f"is not YAML: {error.problem or error.context}{_line(error.problem_mark)}") from None
    except yaml.YAMLError as error:
        raise Unreadable(f"is not YAML: {getattr(error, 'reason', 'it cannot be read')}") from None


def state(file: int | Path) -> tuple[int, int, int]:
    """Inode, size and modification time of a file. Raises OSError."""
    found = os.stat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns


class _Document:
    def __init__(self, content: bytes) -> None:
        self._loader = _Loader(content)
        self._anchors: dict[str, tuple[Any, int]] = {}  # (value, number of values in it)
        self._values = 0
        self._max_values = FREE_VALUES + VALUES_PER_BYTE * len(content)

    def read(self) -> Any:
        self._loader.get_event()  # the stream begins
        if isinstance(self._loader.get_event(), yaml.StreamEndEvent):
            return None
        value = self._value(self._loader.get_event(), 0)
        self._loader.get_event()  # the document ends
        after = self._loader.get_event()
        if not isinstance(after, yaml.StreamEndEvent):
            raise Unreadable(f"holds more than one document{_line(after.start_mark)}")
        return value

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._values
        self._values += 1
        value = self._scalar(event) if isinstance(event, yaml.ScalarEvent) else self._collection(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, self._values - before
        return value

    def _collection(self, event: Any, depth: int) -> Any:
        if depth == DEEPEST:
            raise Unreadable(f"is nested more than {DEEPEST} deep{_line(event.start_mark)}")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(depth + 1)
        return self._mapping(depth + 1)

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            name = event.anchor[:64]
            raise Unreadable(f"*{name} is used before &{name} is complete{_line(event.start_mark)}")
        value, values = self._anchors[event.anchor]
        self._values += values
        if self._values > self._max_values:
            raise Unreadable(f"its aliases expand to more than {self._max_values} values{_line(event.start_mark)}")
        return value

    def _scalar(self, event: Any) -> Any:
        tag = event.tag
        is_long = len(event.value) > LONGEST_NUMBER_CHARS
        if (tag is None or tag == "!") and not is_long:
            tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag is None or tag == "!" or tag == "tag:yaml.org,2002:str":
            return event.value
        if is_long:
            raise Unreadable(f"holds a {tag} of more than {LONGEST_NUMBER_CHARS} characters{_line(event.start_mark)}")
        try:
            return self._loader.construct_document(yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark))
        except ValueError as error:
            raise Unreadable(f"contains an invalid value: {error}{_line(event.start_mark)}") from None

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise Unreadable(f"has a key that is not text{_line(event.start_mark)}")
            if event.value in pairs:
                raise Unreadable(f"has {event.value[:64]!r} twice in one mapping{_line(event.start_mark)}")
            pairs[event.value] = self._value(self._loader.get_event(), depth)
        return pairs


def _line(mark: Any) -> str:
    return f" (line {mark.line + 1})" if mark is not None else ""
