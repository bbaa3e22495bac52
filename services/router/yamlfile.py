"""YAML that a person wrote: read whole, within bounds, and without YAML's silent surprises.

Of two equal keys in one mapping the usual loaders keep the last without a word, so that a second `rate:` further down
undoes the first. Here that is a fault. What is wrong is told by line, never by quoting the line: it might hold a
secret. Values are built from the parser's events at once, without the tree of nodes between, which for 10,000 tenants
costs five times more than all the rest, most of it in the garbage collector.

Reading takes time that is proportional to the file's size, whoever wrote it. So there is a bound on what makes YAML
dearer: aliases that multiply what they stand for ("billion laughs", CWE-776), numbers of many digits (CVE-2020-10735;
YAML 1.1 has some in base 60), and directives, which libyaml compares with one another.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

LARGEST_FILE_BYTES = 16 * 1024 * 1024
DEEPEST = 32
LONGEST_NUMBER_CHARS = 128  # or date, or truth value; longer plain words are text
MOST_DIRECTIVES = 8
VALUES_PER_BYTE = 10  # with those that aliases stand for
FREE_VALUES = 100_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it: ten times faster


class Unreadable(ValueError):
    """What is wrong with the file, in one line."""


def read_yaml(path: Path) -> Any:
    """What the file says: plain values, with text as every key. Raises Unreadable."""
    try:
        with path.open("rb") as file:
            before = state(file.fileno())
            content = file.read(LARGEST_FILE_BYTES + 1)
            after = state(file.fileno())
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    if before != after:  # the first half of a list is a shorter list, and as good YAML
        raise Unreadable("was changed while it was read: read it again once it is written")
    if len(content) > LARGEST_FILE_BYTES:
        raise Unreadable(f"is larger than {LARGEST_FILE_BYTES} bytes")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Unreadable("is not YAML: it is UTF-16, and UTF-8 was expected")
    if (b"\n" + content.replace(b"\r", b"\n")).count(b"\n%") > MOST_DIRECTIVES:
        raise Unreadable(f"has more than {MOST_DIRECTIVES} lines that begin with %")
    try:
        return _Document(content).read()
    except yaml.MarkedYAMLError as error:
        raise Unreadable(f"is not YAML: {error.problem or error.context}{_line(error.problem_mark)}") from None
    except yaml.YAMLError as error:
        raise Unreadable(f"is not YAML: {getattr(error, 'reason', 'it cannot be read')}") from None


def state(file: int | Path) -> tuple[int, int, int]:
    """What changes when this file does. Raises OSError."""
    found = os.stat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns


class _Document:
    """The one document of a stream of events."""

    def __init__(self, content: bytes) -> None:
        self._loader = _Loader(content)
        self._anchors: dict[str, tuple[Any, int]] = {}  # with how many values each is
        self._values = 0
        self._most_values = FREE_VALUES + VALUES_PER_BYTE * len(content)

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
            raise Unreadable(f"*{name} stands before &{name} is complete{_line(event.start_mark)}")
        value, values = self._anchors[event.anchor]
        self._values += values
        if self._values > self._most_values:
            raise Unreadable(f"its aliases stand for more than {self._most_values} values{_line(event.start_mark)}")
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
            raise Unreadable(f"holds a value that cannot be: {error}{_line(event.start_mark)}") from None

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise Unreadable(f"has a key that is no text{_line(event.start_mark)}")
            if event.value in pairs:
                raise Unreadable(f"has {event.value[:64]!r} twice in one mapping{_line(event.start_mark)}")
            pairs[event.value] = self._value(self._loader.get_event(), depth)
        return pairs


def _line(mark: Any) -> str:
    return f" (line {mark.line + 1})" if mark is not None else ""
