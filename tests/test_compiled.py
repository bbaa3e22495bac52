"""Compiled modules are taken only where they were made from the sources that are here, and what is wrong is said."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect
import pytest

from services import compiled
from services.cli.mypycsource import BASE, CHANGES, mypyc_source
from services.contracts.lease import LeaseAsk
from services.core.leases.exchange import UsageAnswer, UsageTotals
from services.router.request import InferenceRequest
from services.runtime import errors

WAITS = (ast.Await, ast.AsyncWith, ast.AsyncFor, ast.Yield, ast.YieldFrom)
DECODE = ("Decoder", "decode", "convert", "loads")


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Services whose hot path is one module, which has not been compiled."""
    (tmp_path / "core").mkdir()
    (tmp_path / "native").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    (tmp_path / "core" / "queue.py").write_text("LENGTH = 1\n", encoding="utf-8")
    monkeypatch.setattr(compiled, "SERVICES", tmp_path)
    monkeypatch.setattr(compiled, "FOLDER", tmp_path / "native")
    monkeypatch.setattr(compiled, "STAMP", tmp_path / "native" / "made-from")
    monkeypatch.setattr(compiled, "_load_library", lambda: None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv("WEIR_CODE", raising=False)
    return tmp_path


def stamp(text: str) -> None:
    compiled.STAMP.write_text(text, encoding="utf-8")


def found(name: str = "services.core.queue") -> str | None:
    """The file in which the compiled module of this name would be looked for; None: Python's own search finds it."""
    for finder in sys.meta_path:
        if isinstance(finder, compiled.Finder) and (spec := finder.find_spec(name)) is not None:
            return spec.origin
    return None


def test_without_compiled_modules_the_sources_are_used(services: Path) -> None:
    compiled.use()
    assert found() is None


def test_modules_compiled_from_these_sources_are_found_first(services: Path) -> None:
    stamp(compiled.made_from(compiled.sources()))
    compiled.use()
    assert found() == str(services / "native" / f"services.core.queue{compiled.SUFFIX}")
    assert isinstance(sys.meta_path[0], compiled.Finder)
    assert found("services.core") is None, "a package is its source"
    assert found("services.worker.batching") is None


def test_an_image_without_the_sources_of_other_services_uses_the_modules_of_its_own(services: Path) -> None:
    stamp(compiled.made_from(compiled.sources()) + f"{'0' * 64} router/request.py\n")
    compiled.use()
    assert found() is not None
    assert found("services.router.request") is None


def test_modules_compiled_from_other_sources_are_not_used_and_a_warning_says_so(services: Path) -> None:
    stamp(compiled.made_from(compiled.sources()))
    (services / "core" / "queue.py").write_text("LENGTH = 2\n", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="compiled from other sources.*run `weir compile`"):
        compiled.use()
    assert found() is None


def test_a_source_that_is_new_makes_the_compiled_modules_old(services: Path) -> None:
    stamp(compiled.made_from(compiled.sources()))
    (services / "core" / "new.py").write_text("", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="compiled from other sources"):
        compiled.use()


def test_modules_for_another_python_are_not_used(services: Path) -> None:
    stamp(compiled.made_from(compiled.sources()).replace(compiled.SUFFIX, ".cpython-39.so"))
    with pytest.warns(RuntimeWarning, match="for another Python"):
        compiled.use()
    assert found() is None


def test_the_sources_can_be_chosen_in_any_case(services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp(compiled.made_from(compiled.sources()))
    monkeypatch.setenv("WEIR_CODE", "python")
    compiled.use()
    assert found() is None


@pytest.mark.parametrize("text", ["", "of other sources"])
def test_where_compiled_modules_are_demanded_their_lack_is_an_error(
    services: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    if text:
        stamp(text)
    monkeypatch.setenv("WEIR_CODE", "compiled")
    with pytest.raises(ImportError, match="run `WEIR_CODE=python weir compile`"):
        compiled.use()


def test_a_choice_that_is_none_is_an_error(services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_CODE", "fast")
    with pytest.raises(ImportError, match="WEIR_CODE=fast: expected one of auto, python, compiled"):
        compiled.use()


def test_every_pattern_of_the_hot_path_names_a_module_and_nothing_is_left_out_that_is_not_there() -> None:
    for pattern in compiled.HOT_PATH:
        assert list(compiled.SERVICES.glob(pattern)), pattern
    for path in compiled.LEFT_OUT:
        assert (compiled.SERVICES / path).exists(), path


def test_each_change_for_mypyc_still_meets_its_source() -> None:
    for path in {path for path, _, _ in CHANGES}:
        assert taken(path) != (compiled.SERVICES / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("decorator", "taken"),
    [
        ("@dataclass(slots=True)", "@dataclass"),
        ("@dataclass(frozen=True, slots=True)", "@dataclass(frozen=True)"),
        ("@dataclass(slots=True, eq=False, repr=False)", "@dataclass(eq=False, repr=False)"),
        ("@dataclass(frozen=True, slots=True, eq=False)", "@dataclass(frozen=True, eq=False)"),
        ("@dataclass(frozen=True)", "@dataclass(frozen=True)"),
    ],
)
def test_a_dataclass_is_compiled_without_slots(decorator: str, taken: str) -> None:
    assert mypyc_source("core/none.py", f"{decorator}\nclass Job:\n    pass\n") == f"{taken}\nclass Job:\n    pass\n"


FUTURE = "from __future__ import annotations"


@pytest.mark.parametrize(
    ("constant", "taken"),
    [
        ("MAX_LINES = 3", "MAX_LINES: Final = 3"),
        ("SPREAD: float = 0.5  # of it", "SPREAD: Final[float] = 0.5  # of it"),
        ("_encode = Encoder().encode", "_encode: Final = Encoder().encode"),
        ("OUT, NEW = Position.OUT, Position.NEW", "OUT: Final = Position.OUT; NEW: Final = Position.NEW"),
        ("NAMES = frozenset({\n    1,\n})", "NAMES: Final = frozenset({\n    1,\n})"),
        ("EDGES = (0.5, 0.9)", "EDGES = (0.5, 0.9)"),
        ("M = TypeVar('M')", "M = TypeVar('M')"),
        ("FIRST = LAST = 1", "FIRST = LAST = 1"),
    ],
)
def test_a_constant_is_compiled_as_one_that_never_changes(constant: str, taken: str) -> None:
    final = "; from typing import Final" if taken != constant else ""
    assert mypyc_source("core/none.py", f"{FUTURE}\n{constant}\n") == f"{FUTURE}{final}\n{taken}\n"


def test_what_is_compiled_has_the_lines_of_its_source() -> None:
    """Tracebacks name them."""
    for source in compiled.sources():
        path = source.relative_to(compiled.SERVICES).as_posix()
        lines, compiled_lines = source.read_text(encoding="utf-8").split("\n"), taken(path).split("\n")
        assert len(compiled_lines) == len(lines)
        for at, (line, other) in enumerate(zip(lines, compiled_lines, strict=True), 1):
            if line.strip().startswith(("def ", "async def ", "return ", "raise ")):
                assert other == line, f"{path}, line {at}"


def test_a_request_is_compiled_with_an_initializer_that_takes_its_fields_in_their_order() -> None:
    tree = ast.parse(taken("router/request.py"))
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "InferenceRequest")
    (made,) = (node for node in kind.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    assert not kind.decorator_list
    fields = [field.name for field in dataclasses.fields(InferenceRequest) if field.init]
    assert [argument.arg for argument in made.args.args] == ["self", *fields]
    assert [ast.unparse(line) for line in made.body] == [f"self.{name} = {name}" for name in fields]


def taken(path: str) -> str:
    """What mypyc takes for this source."""
    base = (compiled.SERVICES / BASE).read_text(encoding="utf-8")
    return mypyc_source(path, (compiled.SERVICES / path).read_text(encoding="utf-8"), base)


def test_nothing_that_is_compiled_waits_while_it_handles_an_exception() -> None:
    """mypyc's coroutines do not put the handled exception aside while they wait: it would be the context of whatever
    fails meanwhile, in other requests, and would keep them alive. `asyncio.timeout` never waits at its end.
    """
    assert [*_waits_in_handlers("try:\n    f()\nexcept E:\n    await g()\n")] == [4], "the rule sees what it forbids"
    assert [*_waits_in_handlers("try:\n    f()\nfinally:\n    await g()\n")] == [4]
    assert [*_waits_in_handlers("async with lock:\n    f()\n")] == [1]
    for source in compiled.sources():
        lines = [*_waits_in_handlers(source.read_text(encoding="utf-8"))]
        assert not lines, f"{source}: lines {lines}"


def test_no_name_stands_for_exceptions_of_two_classes_of_which_one_is_compiled() -> None:
    """mypyc gives a name in a coroutine one type: the other exception would not fit, and fail as a TypeError."""
    text = "def f():\n try:\n  g()\n except {} as e:\n  h(e)\n except KeyError as e:\n  h(e)\n"
    assert [*_doubly_caught(text.format("(OSError, Refused)"))] == ["e"], "the rule sees what it forbids"
    assert not [*_doubly_caught(text.format("OSError"))]
    for source in compiled.sources():
        assert not [*_doubly_caught(source.read_text(encoding="utf-8"))], source


def _doubly_caught(text: str) -> Iterator[str]:
    """The names that a function gives to exceptions of different classes, of which one is in `runtime/errors.py`."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        caught: dict[str, set[str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                caught.setdefault(node.name, set()).add(ast.unparse(node.type))
        for name, kinds in caught.items():
            classes = {each for kind in kinds for each in kind.strip("()").split(", ")}
            if len(kinds) > 1 and any(hasattr(errors, each) and each.isidentifier() for each in classes):
                yield name


def _waits_in_handlers(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Try):
            bodies = [*(handler.body for handler in node.handlers), node.finalbody]
            for statement in (each for body in bodies for each in body):
                yield from (inner.lineno for inner in ast.walk(statement) if isinstance(inner, WAITS))
        timeout = isinstance(node, ast.AsyncWith) and "asyncio.timeout" in ast.unparse(node.items[0])
        if isinstance(node, (ast.AsyncWith, ast.AsyncFor)) and not timeout:
            yield node.lineno


def test_nothing_that_msgspec_decodes_is_compiled() -> None:
    """msgspec reads annotations; of `float | None` mypyc keeps only that it is a type, so that no answer would fit."""
    decoded = {kind for source in sorted(compiled.SERVICES.rglob("*.py")) for kind in _decoded(source)}
    assert {UsageAnswer, UsageTotals, LeaseAsk} <= decoded, "the rule sees what it is about"
    names = {compiled.module_name(source) for source in compiled.sources()}
    assert not {kind for kind in decoded if kind.__module__ in names}


def _decoded(source: Path) -> set[type]:
    """The classes that this module names to msgspec's decoders, and those of their fields."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = {
        name.id
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in DECODE
        for argument in (*call.args, *(each.value for each in call.keywords if each.arg == "type"))
        for name in ast.walk(argument)
        if isinstance(name, ast.Name)
    }
    if not names:
        return set()
    module = vars(importlib.import_module(compiled.module_name(source)))
    return {kind for name in names if isinstance(wanted := module.get(name), type) for kind in _classes(wanted)}


def _classes(wanted: type) -> set[type]:
    found: set[type] = set()
    left: list[Any] = [msgspec.inspect.type_info(wanted)]
    while left:
        info = left.pop()
        kind = getattr(info, "cls", None)
        if kind in found:
            continue
        if kind is not None:
            found.add(kind)
        for name in info.__struct_fields__:
            value = getattr(info, name)
            parts = value if isinstance(value, tuple) else (value,)
            left += [part for part in parts if isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field)]
    return found
