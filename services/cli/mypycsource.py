"""A source of the hot path as mypyc takes it: its text, changed where mypyc knows less than Python does.

Line numbers stay, since tracebacks name them:

- dataclasses lose `slots=True`: mypyc's classes have fixed places for their attributes in any case;
- constants become `Final`, which are read by their place instead of by their name;
- the class of a request gets an `__init__` of its own, since that of a dataclass is not compiled;
- `CHANGES`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

FUTURE = "from __future__ import annotations"
DATACLASS = "@dataclass("
SLOTS = "slots=True"
CHANGES = (
    # The simulator's requests extend the class in Python.
    ("core/request.py", "\n\n@dataclass(eq=False)\nclass Request:",
     "\n@mypyc_attr(allow_interpreted_subclasses=True)\n@dataclass(eq=False)\nclass Request:"),
    ("core/request.py", "    from services.core.pool import Flow\n",
     "    from mypy_extensions import mypyc_attr; from services.core.pool import Flow\n"),
    # An attribute has the same type in a class and its base.
    ("core/request.py", "import TYPE_CHECKING\n", "import TYPE_CHECKING, Any\n"),
    ("core/request.py", "    id: str | int\n", "    id: Any\n"),
    ("router/request.py", "    id: str\n", "    id: Any\n"),
    ("router/request.py", FUTURE, f"{FUTURE}; from typing import Any; from services.core.request import Stage"),
    # A dataclass asks for the types of its fields when it is made: that of a flow is made later.
    ("core/request.py", "    flow: Flow = field(init=False, repr=False)\n",
     "    def _put_into(self, flow: Flow) -> None: self.flow = flow\n"),
)  # fmt: skip
"""File, text and replacement. Each text has to be there, once."""
REQUEST, BASE = "router/request.py", "core/request.py"
UNDECORATED = "class InferenceRequest(Request):\n"
DECORATED = f"@dataclass(eq=False, repr=False)\n{UNDECORATED}"
PROPERTY = "\n    @property\n    def deadline_ms("
"""Its first method, after its fields and an empty line."""


def mypyc_source(path: str, text: str, base: str = "") -> str:
    """The text that mypyc takes for the source at this path below `services`. `base`: that of the class's base."""
    text = "\n".join(map(_without_slots, text.split("\n")))
    for file, old, new in CHANGES:
        if file == path:
            text = replaced(text, old, new)
    if path == REQUEST:
        text = _initialized(text, mypyc_source(BASE, base))
    return _with_finals(text)


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"the sources have changed: {old!r} is not there once"
    return text.replace(old, new)


def _without_slots(line: str) -> str:
    if not line.startswith(DATACLASS):
        return line
    rest = ", ".join(each for each in line.removeprefix(DATACLASS).removesuffix(")").split(", ") if each != SLOTS)
    return f"{DATACLASS}{rest})" if rest else DATACLASS[:-1]


# ---- constants


def _with_finals(text: str) -> str:
    changed = text
    for statement in ast.parse(text).body:
        old, new = _final(statement, lambda node: ast.get_source_segment(text, node) or "")
        if new:
            changed = replaced(changed, f"\n{old}", f"\n{new}")
    return changed if changed == text else replaced(changed, FUTURE, f"{FUTURE}; from typing import Final")


def _final(statement: ast.stmt, source: Callable[[ast.expr], str]) -> tuple[str, str]:
    """The beginning of the statement, and one that makes `Final` what it binds; the second is empty if it may not."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(map(source, target.elts), map(source, value.elts), strict=True)
            old = f"{', '.join(map(source, target.elts))} = {', '.join(map(source, value.elts))}"
            return old, "; ".join(f"{name}: Final = {each}" for name, each in pairs)
        if _may_be_final(target, value):
            return f"{source(target)} = ", f"{source(target)}: Final = "
    if isinstance(statement, ast.AnnAssign) and statement.value and _may_be_final(statement.target, statement.value):
        name, kind = source(statement.target), source(statement.annotation)
        return f"{name}: {kind} = ", f"{name}: Final[{kind}] = "
    return "", ""


def _may_be_final(target: ast.expr, value: ast.expr) -> bool:
    """Whether it is a constant by its name: `MAX_LINES`, `_FADE`, `_encode`; and no tuple.

    mypyc keeps a tuple of numbers unboxed, and then cannot tell whether a `Final` one was set.
    """
    if not isinstance(target, ast.Name) or isinstance(value, ast.Tuple):
        return False
    of_types = isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"
    return not of_types and (target.id.isupper() or (target.id.startswith("_") and target.id.islower()))


# ---- the class of a request


@dataclass(frozen=True)
class Field:
    name: str
    kind: str
    default: str | None


def _fields(text: str, name: str) -> Mapping[str, Field]:
    """The fields of the class `name`, in their order."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            found = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            return {ast.unparse(each.target): _field(each) for each in found}
    raise AssertionError(f"there is no class {name}")


def _field(found: ast.AnnAssign) -> Field:
    default = None if found.value is None else ast.unparse(found.value)
    return Field(ast.unparse(found.target), ast.unparse(found.annotation), default)


def _initialized(text: str, base: str) -> str:
    """The class of requests without the decorator, and with what that would have made: `__init__`, in one line."""
    fields = {**_fields(base, "Request"), **_fields(text, "InferenceRequest")}
    given = (f"{each.name}: {each.kind}" + (f" = {each.default}" if each.default else "") for each in fields.values())
    sets = (f"self.{name} = {name}" for name in fields)
    method = f"    def __init__(self, {', '.join(given)}) -> None: {'; '.join(sets)}"
    return replaced(replaced(text, DECORATED, f"\n{UNDECORATED}"), PROPERTY, f"{method}\n{PROPERTY[1:]}")
