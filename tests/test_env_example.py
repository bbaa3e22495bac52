"""`.env.example` names every setting, with its true default and a unit, and nothing that does not exist."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import BaseSettings

ROOT = Path(__file__).parent.parent
LINES = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()

ASSIGNMENT = re.compile(r"^#?([A-Z][A-Z0-9_]*)=(.*)$")
MEANING = re.compile(r"^# [A-Z`].*[^ ]\. \[([^\[\]]+)\]$")
COMPOSE_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z][A-Z0-9_]*)(?::?-([^{}]*))?")
UNIT_OF_ENDING = {
    "_MS": "milliseconds", "_S": "seconds", "_BYTES": "bytes", "_TOKENS": "tokens",
    "_PORT": "port", "_HOST": "address", "_URL": "URL", "_FILE": "file",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One variable as the file shows it."""

    name: str
    value: str
    meaning: str

    @property
    def unit(self) -> str:
        found = MEANING.match(self.meaning)
        return found[1] if found else ""


def shown() -> dict[str, Entry]:
    found = [(match, i) for i, line in enumerate(LINES) if (match := ASSIGNMENT.match(line))]
    return {match[1]: Entry(match[1], match[2], LINES[i - 1]) for match, i in found}


@cache
def settings_classes() -> list[type[BaseSettings]]:
    found = [path for tree in ("services", "loadtests") for path in sorted(ROOT.glob(f"{tree}/**/config.py"))]
    paths = [ROOT / "services/runtime/settings.py", *found]
    modules = [importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in paths]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, BaseSettings) and value.__module__ == module.__name__
    ]


def as_text(default: Any) -> str:
    """A default as one would write it in the file."""
    if default is None:
        return ""
    if isinstance(default, Enum):
        return str(default.value)
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:.15g}"
    return str(default)


@cache
def defaults() -> dict[str, set[str]]:
    """Every variable, and the defaults that the services give it: one, or several where each has its own."""
    found: dict[str, set[str]] = {}
    for cls in settings_classes():
        for name, field in cls.model_fields.items():
            found.setdefault(name.upper(), set()).add(as_text(field.default))
    return found


def compose_variables() -> dict[str, str]:
    """What docker-compose.yml takes from .env, with the defaults it gives."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    found = [(match[1], match[2]) for match in COMPOSE_VARIABLE.finditer(text)]
    return {name: default for name, default in found if default is not None}


ENTRIES = shown()


def test_every_setting_is_named_and_nothing_else_is():
    assert sorted(ENTRIES) == sorted(defaults().keys() | compose_variables().keys())


def test_no_variable_is_named_twice():
    names = Counter(match[1] for line in LINES if (match := ASSIGNMENT.match(line)))
    assert [name for name, times in names.items() if times > 1] == []


def test_a_copy_of_the_file_changes_nothing():
    assert [line for line in LINES if line and not line.startswith("#")] == []


@pytest.mark.parametrize("name", sorted(defaults()))
def test_the_value_shown_is_the_default(name):
    assert ENTRIES[name].value in defaults()[name]


@pytest.mark.parametrize("name", sorted(compose_variables().keys() - defaults().keys()))
def test_the_value_shown_for_compose_is_its_default(name):
    assert ENTRIES[name].value == compose_variables()[name]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_a_variable_has_one_line_of_meaning_and_a_unit(entry):
    assert MEANING.match(entry.meaning), f"{entry.name}: write '# What it means. [unit]' above it"
    for ending, unit in UNIT_OF_ENDING.items():
        if entry.name.endswith(ending):
            assert entry.unit == unit
            break


@pytest.mark.parametrize("cls", settings_classes(), ids=lambda cls: cls.__name__)
def test_every_value_shown_is_accepted_and_is_what_one_gets_without_it(cls, tmp_path, monkeypatch):
    for name in cls.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    shared = [name for name, values in defaults().items() if len(values) == 1]
    env = tmp_path / ".env"
    env.write_text("".join(f"{name}={ENTRIES[name].value}\n" for name in shared), encoding="utf-8")
    assert cls(_env_file=env) == cls(_env_file=None)


def test_the_tables_of_the_settings_pages_repeat_the_file():
    pages = [ROOT / "docs" / "operations" / name for name in ("settings.md", "settings-parts.md")]
    tables = "".join(page.read_text(encoding="utf-8") for page in pages)
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| (?:`(.*?)`|empty)(?: \((.*?)\))? \| (.*) \|$", tables, re.MULTILINE)
    by_name = {name: unit for name in ENTRIES for ending, unit in UNIT_OF_ENDING.items() if name.endswith(ending)}
    assert [name for name, _, unit, _ in rows if bool(unit) == (name in by_name)] == []  # a unit is said once
    assert {name: (value, f"# {meaning}. [{unit or by_name[name]}]") for name, value, unit, meaning in rows} == {
        entry.name: (entry.value, entry.meaning) for entry in ENTRIES.values()
    }
