"""Steps of a regular expression: a backtracking matcher over Python's own parse tree, which counts what it does.

A match of `re` is one bytecode, whatever it costs, so that counting bytecodes cannot see a superlinear pattern. This
matcher tries what `re` tries, in the same order, one item at a time (Thompson's program, run with a stack as in Cox,
"Regular Expression Matching: the Virtual Machine Approach", 2009), and counts each item. `re` has short cuts, such as
skipping to a pattern's literal beginning: it takes as many steps or fewer. What the patterns of this repository do not
use (back references, conditions) raises NotImplementedError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

IsIn = Callable[[str], bool]
UNBOUNDED = sre.MAXREPEAT


class Item(NamedTuple):
    """One instruction. `next` of a split: where to go first, and where on the way back."""

    kind: str
    test: Any = None
    next: tuple[int, int] = (0, 0)


class Program:
    """A pattern, compiled. `steps` counts over all calls."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.flags = pattern.flags
        self.is_bytes = isinstance(pattern.pattern, bytes)
        self.steps = 0
        tree = parser.parse(pattern.pattern, pattern.flags & ~(re.UNICODE | re.DEBUG))
        self._items = self._compiled(tree)

    def match(self, text: str | bytes, at: int = 0) -> int | None:
        """Where a match ends that begins at `at`."""
        return self._run(self._items, self._text(text), at, whole=False)

    def fullmatch(self, text: str | bytes) -> int | None:
        return self._run(self._items, self._text(text), 0, whole=True)

    def search(self, text: str | bytes, at: int = 0) -> tuple[int, int] | None:
        """Begin and end of the first match."""
        plain = self._text(text)
        for start in range(at, len(plain) + 1):
            end = self._run(self._items, plain, start, whole=False)
            if end is not None:
                return start, end
        return None

    def finditer(self, text: str | bytes) -> list[tuple[int, int]]:
        """All matches; `findall`, `sub` and `split` do the same. Not for patterns that match nothing."""
        found, at = [], 0
        while (span := self.search(text, at)) is not None:
            found.append(span)
            at = max(span[1], span[0] + 1)
        return found

    @staticmethod
    def _text(text: str | bytes) -> str:
        return text.decode("latin-1") if isinstance(text, bytes) else text

    # From tree to items

    def _compiled(self, tree: Any) -> list[Item]:
        items: list[Item] = []
        self._add(items, tree)
        items.append(Item("end"))
        return items

    def _add(self, items: list[Item], tree: Any) -> None:
        for operator, argument in tree:
            self._add_one(items, operator, argument)

    def _add_one(self, items: list[Item], operator: Any, argument: Any) -> None:
        if operator in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY):
            items.append(Item("char", self._tester(operator, argument)))
        elif operator is sre.AT:
            items.append(Item("at", argument))
        elif operator is sre.SUBPATTERN:
            self._add(items, argument[3])
        elif operator is sre.BRANCH:
            self._add_branches(items, argument[1])
        elif operator in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            self._add_repeat(items, *argument, greedy=operator is sre.MAX_REPEAT)
        elif operator is sre.POSSESSIVE_REPEAT:
            inner: list[Item] = []
            self._add_repeat(inner, *argument, greedy=True)
            items.append(Item("atomic", [*inner, Item("end")]))
        elif operator is sre.ATOMIC_GROUP:
            items.append(Item("atomic", self._compiled(argument)))
        elif operator in (sre.ASSERT, sre.ASSERT_NOT):
            direction, tree = argument
            back = tree.getwidth()[0] if direction < 0 else 0
            items.append(Item("look", (self._compiled(tree), back, operator is sre.ASSERT)))
        else:
            raise NotImplementedError(operator)

    def _add_branches(self, items: list[Item], branches: list[Any]) -> None:
        ends = []
        for branch in branches[:-1]:
            split = self._hole(items)
            self._add(items, branch)
            ends.append(self._hole(items))
            items[split] = Item("split", next=(split + 1, len(items)))
        self._add(items, branches[-1])
        for end in ends:
            items[end] = Item("split", next=(len(items), -1))

    def _add_repeat(self, items: list[Item], least: int, most: Any, tree: Any, *, greedy: bool) -> None:
        for _ in range(least):
            self._add(items, tree)
        if most is UNBOUNDED:
            if not tree.getwidth()[0]:
                raise NotImplementedError("a repeated item that may be empty")
            split = self._hole(items)
            self._add(items, tree)
            items.append(Item("split", next=(split, -1)))
            items[split] = self._split(split + 1, len(items), greedy)
            return
        splits = []
        for _ in range(most - least):
            splits.append(self._hole(items))
            self._add(items, tree)
        for split in splits:
            items[split] = self._split(split + 1, len(items), greedy)

    @staticmethod
    def _hole(items: list[Item]) -> int:
        items.append(Item("hole"))
        return len(items) - 1

    @staticmethod
    def _split(inside: int, after: int, greedy: bool) -> Item:
        return Item("split", next=(inside, after) if greedy else (after, inside))

    # One character

    def _tester(self, operator: Any, argument: Any) -> IsIn:
        test = lru_cache(maxsize=4096)(self._plain_tester(operator, argument))
        if not self.flags & re.IGNORECASE:
            return test
        return lambda char: test(char) or test(char.lower()) or test(char.upper())

    def _plain_tester(self, operator: Any, argument: Any) -> IsIn:
        if operator is sre.LITERAL:
            return lambda char: ord(char) == argument
        if operator is sre.NOT_LITERAL:
            return lambda char: ord(char) != argument
        if operator is sre.ANY:
            return lambda char: char != "\n" or bool(self.flags & re.DOTALL)
        negated = bool(argument) and argument[0][0] is sre.NEGATE
        tests = [self._member(*each) for each in argument[negated:]]
        return lambda char: any(test(char) for test in tests) != negated

    def _member(self, operator: Any, argument: Any) -> IsIn:
        if operator is sre.RANGE:
            return lambda char: argument[0] <= ord(char) <= argument[1]
        if operator is sre.CATEGORY:
            return self._category(argument)
        return self._plain_tester(operator, argument)

    def _category(self, category: Any) -> IsIn:
        name = str(category).removeprefix("CATEGORY_")
        positive = name.removeprefix("NOT_")
        ascii_only = self.is_bytes or bool(self.flags & re.ASCII)
        tests: dict[str, IsIn] = {
            "WORD": lambda char: char.isalnum() or char == "_",
            "SPACE": (lambda char: char in " \t\n\r\f\v") if ascii_only else str.isspace,
            "DIGIT": str.isdecimal,
        }
        test = tests[positive]
        return lambda char: (test(char) and (char.isascii() or not ascii_only)) != (name != positive)

    # Running

    def _run(self, items: list[Item], text: str, at: int, *, whole: bool) -> int | None:
        back: list[tuple[int, int]] = []
        place = 0
        while True:
            self.steps += 1
            item = items[place]
            if item.kind == "end" and (not whole or at == len(text)):
                return at
            if item.kind == "split":
                place, other = item.next
                if other >= 0:
                    back.append((other, at))
                continue
            after = self._after(item, text, at)
            if after is not None:
                place, at = place + 1, after
            elif back:
                place, at = back.pop()
            else:
                return None

    def _after(self, item: Item, text: str, at: int) -> int | None:
        """Where the text goes on behind this item; None where it does not fit."""
        if item.kind == "char":
            return at + 1 if at < len(text) and item.test(text[at]) else None
        if item.kind == "at":
            return at if self._is_at(item.test, text, at) else None
        if item.kind == "atomic":
            return self._run(item.test, text, at, whole=False)
        if item.kind == "look":
            inner, behind, wanted = item.test
            found = at >= behind and self._run(inner, text, at - behind, whole=False) is not None
            return at if found == wanted else None
        return None  # an end that is not the text's

    def _is_at(self, where: Any, text: str, at: int) -> bool:
        lines = bool(self.flags & re.MULTILINE)
        if where in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            return at == 0 or (lines and where is sre.AT_BEGINNING and text[at - 1] == "\n")
        if where is sre.AT_END_STRING:
            return at == len(text)
        if where is sre.AT_END:
            return at == len(text) or (text[at] == "\n" and (lines or at == len(text) - 1))
        raise NotImplementedError(where)


def literals(pattern: re.Pattern[Any]) -> tuple[list[str], list[str]]:
    """What a hostile text for this pattern is made of: its runs of literals, and characters of its classes."""
    runs, excluded, chars = [], set(), set()
    for run, members in _walk(parser.parse(pattern.pattern, pattern.flags & ~(re.UNICODE | re.DEBUG))):
        runs += [run] if len(run) > 1 else []
        chars |= members | set(run[:1]) | set(run[-1:])
        excluded |= members if "x" in members else set()  # of a negated class: what ends a repeat, and makes it go back
    return list(dict.fromkeys(runs)), [*sorted(excluded - {"x"}), *sorted(chars - excluded)]


_OF_CATEGORY = {"WORD": "a", "DIGIT": "1", "SPACE": " "}


def _walk(tree: Any) -> Iterator[tuple[str, set[str]]]:
    run = ""
    for operator, argument in tree:
        if operator is sre.LITERAL:
            run += chr(argument)
            continue
        yield run, set()
        run = ""
        if operator is sre.IN:
            yield "", set(_members(argument))
        elif operator is sre.NOT_LITERAL:
            yield "", {chr(argument), "x"}
        elif operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            yield from _walk(argument[2])
        elif operator is sre.SUBPATTERN:
            yield from _walk(argument[3])
        elif operator is sre.ATOMIC_GROUP:
            yield from _walk(argument)
        elif operator in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _walk(argument[1])
        elif operator is sre.BRANCH:
            for branch in argument[1]:
                yield from _walk(branch)
    yield run, set()


def _members(argument: Any) -> Iterator[str]:
    for operator, value in argument:
        if operator is sre.LITERAL:
            yield chr(value)
        elif operator is sre.RANGE:
            yield chr(value[0])
        elif operator is sre.CATEGORY:
            yield _OF_CATEGORY[str(value).removeprefix("CATEGORY_").removeprefix("NOT_")]
        elif operator is sre.NEGATE:
            yield "x"
