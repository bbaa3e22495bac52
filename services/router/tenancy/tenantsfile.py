"""TENANTS_FILE: tenants, their keys, and what each may use. docs/operations/tenants.md lists the fields.

    classes: [{name: interactive, weight: 8}, {name: batch, weight: 1, floor: 0.05}]
    tenants: [{id: acme, keys: ["sha256:<hex of the key>"], class: interactive, rate: {requests_per_s: 50}}]

Without `classes` there is one class, `default`. A tenant without a class is in `default`, or in the first class if
there is none of this name. Every fault is reported at once, with its place and remedy. An unknown name is a fault,
since a misspelt limit would be no limit. Messages never quote `keys`, since they might hold a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from services.contracts.documents import MAX_QUOTA
from services.router.tenancy.keys import EXAMPLE_KEYS
from services.router.yamlfile import Unreadable, read_yaml
from services.runtime import apikey

MAX_TENANTS = 10_000
MAX_CLASSES = 16
MAX_KEYS = 2
DEFAULT_CLASS = "default"
RESERVED = ("other",)
"""Tenant names of metrics and logs, for names that are not configured."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


E = TypeVar("E", bound=_Section)


class ClassEntry(_Section):
    """A class of tenants: its weight among classes, and its minimum share of the work."""

    name: Name
    weight: Weight = 1.0
    floor: float = Field(0.0, ge=0, lt=1, allow_inf_nan=False)


class RateEntry(_Section):
    """A rate limit per second, with one second's worth of burst."""

    requests_per_s: Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)] | None = None
    tokens_per_s: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> RateEntry:
        if self.requests_per_s is None and self.tokens_per_s is None:
            raise ValueError("sets neither requests_per_s nor tokens_per_s; leave `rate` out for no limit")
        return self


class QueueEntry(_Section):
    requests: Annotated[int, Field(ge=1, le=100_000)] | None = None
    cost_tokens: Positive | None = None


class DocumentsEntry(_Section):
    """The quota: documents, and bytes of their text. 0 for none."""

    count: Annotated[int, Field(ge=0, le=MAX_QUOTA)] | None = None
    bytes: Annotated[int, Field(ge=0, le=MAX_QUOTA)] | None = None


class TenantEntry(_Section):
    id: Name
    keys: list[str] = Field(min_length=1, max_length=MAX_KEYS)
    weight: Weight = 1.0
    class_name: Name | None = Field(None, alias="class")
    slo_ms: Positive | None = None
    rate: RateEntry | None = None
    queue: QueueEntry = QueueEntry()
    documents: DocumentsEntry = DocumentsEntry()
    degrade: bool = False
    models: list[str] = Field(["*"], min_length=1, max_length=1000)

    @field_validator("id")
    @classmethod
    def _is_free(cls, id: str) -> str:
        if id in RESERVED:
            raise ValueError("this name is reserved: choose another")
        return id

    @field_validator("keys")
    @classmethod
    def _are_hashes(cls, written: list[str]) -> list[str]:
        for number, text in enumerate(written):
            if text.startswith(apikey.PREFIX):
                raise ValueError(
                    f"number {number} is a key itself, which must not be stored in a file: create a new one"
                )
            if apikey.parse(text) is None:
                raise ValueError(f"number {number} is not sha256: and 64 hexadecimal digits, as `weir keys new` prints")
        return [text.lower() for text in written]

    @property
    def allowed_models(self) -> frozenset[str] | None:
        """The models; None: all of them."""
        return None if "*" in self.models else frozenset(self.models)

    @property
    def digests(self) -> list[bytes]:
        return [bytes.fromhex(text.removeprefix(apikey.SCHEME)) for text in self.keys]


class TenantsFile(_Section):
    classes: tuple[ClassEntry, ...]
    tenants: tuple[TenantEntry, ...]

    def class_of(self, tenant: TenantEntry) -> str:
        return tenant.class_name or default_class([entry.name for entry in self.classes])

    @property
    def owners(self) -> dict[bytes, str]:
        """Digest of a key -> tenant."""
        return {digest: tenant.id for tenant in self.tenants for digest in tenant.digests}

    @property
    def with_example_keys(self) -> list[str]:
        """Tenants whose keys are the public ones of tenants.example.yaml."""
        examples = {apikey.digest(key.encode("ascii")) for key in EXAMPLE_KEYS}
        return [tenant.id for tenant in self.tenants if examples.intersection(tenant.digests)]


class Faulty(ValueError):
    """The file cannot be used. `faults` lists every fault, one line each."""

    def __init__(self, path: Path, faults: Sequence[str]) -> None:
        super().__init__(f"TENANTS_FILE {path}:\n" + "\n".join(f"  {fault}" for fault in faults))
        self.faults = tuple(faults)


def default_class(names: Sequence[str]) -> str:
    """The class of tenants that name none."""
    return DEFAULT_CLASS if DEFAULT_CLASS in names else names[0]


def read(path: Path, max_slo_ms: float = inf) -> TenantsFile:
    """The file at `path`. Raises Faulty with every fault. Slow for many tenants: call it outside of the event loop."""
    try:
        content = read_yaml(path)
    except Unreadable as error:
        raise Faulty(path, [str(error)]) from None
    if not isinstance(content, dict):
        raise Faulty(path, ["is empty or not a mapping: `tenants:` and a list of tenants was expected"])
    unknown = [name for name in content if name not in _SECTIONS]
    faults = [f"{_word(name)}: is not a known key; use `classes` and `tenants`" for name in unknown]
    of_classes = _section("classes", content.get("classes", [{"name": DEFAULT_CLASS}]), faults)
    of_tenants = _section("tenants", content.get("tenants"), faults)
    classes = _entries(ClassEntry, "classes", of_classes, faults)
    tenants = _entries(TenantEntry, "tenants", of_tenants, faults)
    faults += _class_faults(classes)
    faults += _tenant_faults(tenants, _names(of_classes), max_slo_ms)
    if faults:
        raise Faulty(path, faults)
    return TenantsFile(classes=tuple(classes.values()), tenants=tuple(tenants.values()))


_SECTIONS = {"classes": MAX_CLASSES, "tenants": MAX_TENANTS}


def _section(name: str, entries: Any, faults: list[str]) -> list[Any]:
    """The entries of a section; none if it is malformed."""
    if not isinstance(entries, list) or not entries:
        faults.append(f"{name}: a list of at least one was expected")
        return []
    if len(entries) > _SECTIONS[name]:
        faults.append(f"{name}: there are {len(entries)}, and {_SECTIONS[name]} is the most")
        return []
    return entries


def _entries(kind: type[E], section: str, entries: list[Any], faults: list[str]) -> dict[str, E]:
    """The entries without a fault of their own, by their place in the file."""
    sound: dict[str, E] = {}
    for number, entry in enumerate(entries):
        place = _place(section, number, entry)
        try:
            sound[place] = kind.model_validate(entry)
        except ValidationError as error:
            faults += [f"{place}{_message(fault)}" for fault in error.errors(include_url=False)]
    return sound


def _place(section: str, number: int, entry: Any) -> str:
    """`tenants[3] (acme)`."""
    name = entry.get("id", entry.get("name")) if isinstance(entry, dict) else None
    return f"{section}[{number}]" + (f" ({_word(name)})" if isinstance(name, str) else "")


def _word(text: str) -> str:
    """A string of the file, safe for one line of a message."""
    return text if text.isprintable() and len(text) <= 64 else ascii(text[:64])


_MESSAGES = {
    "extra_forbidden": "is not a known key",
    "missing": "is missing",
    "model_type": "is not a mapping",
    "string_type": "is not text; put it in quotes",
}


def _message(fault: ErrorDetails) -> str:
    """`, rate.requests_per_s: Input should be greater than 0, not -1`. Quotes only plain numbers and words."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{_word(part)}" for part in fault["loc"])[1:]
    message = _MESSAGES.get(fault["type"], fault["msg"].removeprefix("Value error, "))
    shown = fault["type"] not in _MESSAGES and not path.startswith("keys")
    value = fault["input"]
    if shown and isinstance(value, str | int | float) and len(repr(value)) <= 80:
        message += f", not {value!r}"
    return f", {path}: {message}" if path else f": {message}"


def _names(of_classes: list[Any]) -> list[str]:
    """The names of all classes, faulty ones too: a tenant of a faulty class is not at fault."""
    return [entry["name"] for entry in of_classes if isinstance(entry, dict) and isinstance(entry.get("name"), str)]


def _class_faults(classes: Mapping[str, ClassEntry]) -> Iterator[str]:
    yield from _twice((place, entry.name) for place, entry in classes.items())
    floors = sum(entry.floor for entry in classes.values())
    if floors >= 1:
        yield f"classes: their floors come to {floors:g}; their sum must be less than 1"


def _tenant_faults(tenants: Mapping[str, TenantEntry], classes: list[str], max_slo_ms: float) -> Iterator[str]:
    yield from _twice((place, entry.id) for place, entry in tenants.items())
    yield from _twice(((place, text) for place, entry in tenants.items() for text in entry.keys), "this key")
    for place, entry in tenants.items():
        if entry.class_name is not None and entry.class_name not in classes:
            yield f"{place}, class: unknown class {entry.class_name!r}; use {', '.join(map(_word, classes))}"
        if entry.slo_ms is not None and entry.slo_ms > max_slo_ms:
            yield f"{place}, slo_ms: {entry.slo_ms:g} is more than MAX_DEADLINE_MS, {max_slo_ms:g}"


def _twice(named: Iterable[tuple[str, str]], what: str = "") -> Iterator[str]:
    """Report every name that an earlier entry has."""
    first: dict[str, str] = {}
    for place, name in named:
        if name in first:
            yield f"{place}: {what or repr(name)} is that of {first[name]} already"
        first.setdefault(name, place)
