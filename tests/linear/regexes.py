"""Every regular expression of the services, the simulator and the storm bench, and the steps that it takes at worst."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tests.linear.backtracking import Program, literals

ROOT = Path(__file__).parents[2]
FOLDERS = (
    ROOT / "services",
    ROOT / "loadtests" / "load",
    ROOT / "loadtests" / "scenarios",
    ROOT / "loadtests" / "simulator",
    ROOT / "loadtests" / "storm",
)
USES = ("match", "fullmatch", "search", "finditer", "findall", "split", "sub", "subn")
SIZES = (48, 192, 768)
"""A bound such as {1,64} looks like growth where the sizes are around it: then larger ones decide."""
MOST_GROWTH = 2.2
MAX_TOKEN_CHARS, MOST_RUNS = 7, 3


@dataclass(frozen=True)
class Found:
    """A regular expression: where it stands, what it is called, and how it is used (`search` for a schema's)."""

    file: str
    name: str
    pattern: re.Pattern[Any]
    uses: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str]:
        return self.file, self.name


def all_of(*folders: Path) -> Iterator[Found]:
    """Those that are compiled, used at once, or given to pydantic and msgspec as `pattern=`. Default: `FOLDERS`."""
    for path in sorted(path for folder in folders or FOLDERS for path in folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "re." in source or "pattern=" in source:
            yield from _of_file(path, ast.parse(source))


def _of_file(path: Path, tree: ast.Module) -> Iterator[Found]:
    file = str(path.relative_to(ROOT))
    for owner, node in _owned(tree, ""):
        written = _written(node)
        if written is None:
            continue
        use, argument, flags = written
        uses = (use,) if use != "compile" else _uses_of(owner, tree)
        yield Found(file, owner, _pattern(file, owner, argument, flags), uses)


def _owned(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.Call]]:
    """Each call, and the name that it is assigned to, or of the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        name = owner
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = child.name
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            name = child.targets[0].id
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            name = child.target.id
        if isinstance(child, ast.Call):
            yield name, child
        yield from _owned(child, name)


def _written(call: ast.Call) -> tuple[str, ast.expr, ast.expr | None] | None:
    """How a pattern is used, the pattern, and its flags."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re":
        if function.attr not in ("compile", *USES):
            return None
        flags = [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
        flags += call.args[1:2] if function.attr == "compile" else []
        return function.attr, call.args[0], flags[0] if flags else None
    for keyword in call.keywords:
        if keyword.arg == "pattern":
            return "search", keyword.value, None
    return None


def _uses_of(name: str, tree: ast.Module) -> tuple[str, ...]:
    """What is called on a compiled pattern in its own file; all that is possible where nothing is."""
    uses = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }
    return tuple(sorted(uses.intersection(USES))) or ("fullmatch", "finditer")


def _pattern(file: str, name: str, argument: ast.expr, flags: ast.expr | None) -> re.Pattern[Any]:
    try:
        text = ast.literal_eval(argument)
    except ValueError:
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        made = getattr(module, name)
        assert isinstance(made, re.Pattern), f"{file}: {name} is made in a way that this test cannot follow"
        return made
    given = 0 if flags is None else eval(ast.unparse(flags), {"re": re})
    return re.compile(text, given)


def worst_growth(found: Found, sizes: tuple[int, ...] = SIZES) -> tuple[float, str, str]:
    """The most that the steps grow when a hostile text doubles; the text, and the use. Reading it counts as well.

    The first growth that is too much ends the search.
    """
    program, worst = Program(found.pattern), (0.0, "", "")
    for use, parts in product(found.uses, hostile(found.pattern)):
        for size in sizes:
            growth = _cost(program, use, parts, 2 * size) / _cost(program, use, parts, size)
            if growth <= MOST_GROWTH:
                break
        before, pump, after = parts
        worst = max(worst, (growth, f"{before!r} {pump!r}* {after!r}", use))
        if growth > MOST_GROWTH:
            break
    return worst


def _cost(program: Program, use: str, parts: tuple[str, str, str], size: int) -> int:
    before, pump, after = parts
    text = before + pump * (size // len(pump)) + after
    program.steps = 0
    getattr(program, use if use in ("match", "fullmatch", "search") else "finditer")(text)
    return program.steps + len(text)


def hostile(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """(beginning, what is repeated, end), made of the pattern's own literals and of characters in its classes."""
    runs, chars = literals(pattern)
    chars = list(dict.fromkeys([*chars[:MAX_TOKEN_CHARS], "!"]))
    pairs = [first + second for first, second in product(chars[:3], repeat=2) if first != second]
    yield from product(["", *runs[:MOST_RUNS], chars[0]], [*chars, *pairs, *runs], ["", *chars[:2], "!"])
