"""Names in the product and its test bed: no word that only this project uses, and no name with two meanings.

An identifier is split into its words (`share_of_life`: share, of, life), and none of them may be banned. A public class
has one name over all services: a reader who meets it in a traceback or a log has one place to look.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICES = ROOT / "services"
PACKAGES = [
    *(f"services/{path.name}" for path in sorted(SERVICES.iterdir()) if (path / "__init__.py").exists()),
    "loadtests",
]
"""Held to the banned words."""

BANNED = frozenset(
    {
        *("anew", "anybody", "begun", "crew", "everybody", "foretell", "foretold", "hasty", "hear", "heard", "hears"),
        *("least", "lends", "lent", "mend", "mended", "met", "most", "mutter", "nobody", "outbox", "patience"),
        *("revival", "roster", "said", "saying", "says", "seat", "seats", "somebody", "story", "tally", "tell"),
        *("telling", "tells", "told", "turned", "unheard", "whoever", "whom", "whose"),
    }
)
"""Words of the older code. Now: told is sent or encoded, said is value or message, most is max or limit, and so on."""

OTHERS_WORDS = frozenset({"_least_squares", "most_common", "tell"})
"""Identifiers of the field or of a library: least squares, `Counter.most_common`, the position in a file (`tell`)."""

BOUNDS = re.compile("at_(least|most)")
"""A bound of a target or in a check: the usual words."""

SHARED = frozenset({"Usage"})
"""Class names of wire types that several protocols have (`contracts/`), each named as in its protocol."""

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that code reads, binds or defines, with its line; no string and no import of others' names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def banned(identifier: str) -> set[str]:
    """The banned words in an identifier."""
    if identifier in OTHERS_WORDS:
        return set()
    return BANNED & {word.lower() for word in WORD.findall(BOUNDS.sub("", identifier))}


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("told", {"told"}), ("_tell", {"tell"}), ("MOST_BYTES", {"most"}), ("EngineRoster", {"roster"}),
        ("settled", set()), ("at_most_s", set()), ("almost", set()), ("_least_squares", set()),
        ("unheardOf", {"unheard"}),
    ],
)  # fmt: skip
def test_an_identifier_is_judged_word_by_word(identifier: str, words: set[str]) -> None:
    assert banned(identifier) == words


@pytest.mark.parametrize("package", PACKAGES)
def test_no_identifier_of_a_package_has_a_banned_word(package: str) -> None:
    found = {
        f"{file.relative_to(ROOT)}:{line} {identifier}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for identifier, line in identifiers(ast.parse(file.read_text(encoding="utf-8")))
        if banned(identifier)
    }
    assert not found, "use the field's word:\n" + "\n".join(sorted(found))


def test_a_public_class_has_a_name_of_its_own_over_all_services() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(SERVICES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(SERVICES)))
    doubled = {name: files for name, files in places.items() if len(files) > 1}
    clash = {
        name: files
        for name, files in doubled.items()
        if name not in SHARED or not all(file.startswith("contracts/") for file in files)
    }
    assert not clash, f"two classes of one name: {clash}"
