"""TENANTS_FILE: what is read, and how every fault is told at once with its place."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.router.tenancy.tenantsfile import MAX_TENANTS, Faulty, TenantsFile, read
from services.runtime.apikey import digest, written

ROOT = Path(__file__).parents[3]
A, B, C = (written(digest(name)) for name in (b"a", b"b", b"c"))

FROM_THE_DESIGN = f"""
classes: [{{name: interactive, weight: 8}}, {{name: batch, weight: 1, floor: 0.05}}]
tenants:
  - id: acme
    keys: ["{A}"]
    weight: 2
    class: interactive
    slo_ms: 2000
    rate: {{requests_per_s: 50, tokens_per_s: 20000}}
    queue: {{requests: 64, cost_tokens: 200000}}
    degrade: true
    models: ["*"]
"""

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(content: str | bytes) -> Path:
        file = tmp_path / "tenants.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return to


def faults(file: Path, **limits: float) -> tuple[str, ...]:
    with pytest.raises(Faulty) as refused:
        read(file, **limits)
    assert str(refused.value).startswith(f"TENANTS_FILE {file}:\n  ")
    return refused.value.faults


def test_every_word_of_the_file_is_read(write: Write) -> None:
    file = read(write(FROM_THE_DESIGN))
    assert [(entry.name, entry.weight, entry.floor) for entry in file.classes] == [
        ("interactive", 8, 0),
        ("batch", 1, 0.05),
    ]
    (acme,) = file.tenants
    assert (acme.id, acme.weight, acme.slo_ms, acme.degrade) == ("acme", 2, 2000, True)
    assert acme.rate is not None
    assert (acme.rate.requests_per_s, acme.rate.tokens_per_s) == (50, 20_000)
    assert (acme.queue.requests, acme.queue.cost_tokens) == (64, 200_000)
    assert acme.allowed_models is None
    assert file.class_of(acme) == "interactive"
    assert file.owners == {digest(b"a"): "acme"}


def test_only_a_name_and_a_key_are_required(write: Write) -> None:
    file = read(write(f"tenants: [{{id: acme, keys: ['{A}']}}]"))
    (acme,) = file.tenants
    assert [entry.name for entry in file.classes] == ["default"]
    assert file.class_of(acme) == "default"
    assert (acme.weight, acme.slo_ms, acme.rate, acme.degrade) == (1, None, None, False)
    assert (acme.queue.requests, acme.queue.cost_tokens, acme.allowed_models) == (None, None, None)


def test_who_names_no_class_is_of_the_default_one_or_of_the_first(write: Write) -> None:
    tenant = f"tenants: [{{id: acme, keys: ['{A}']}}]"
    first = read(write("classes: [{name: fast}, {name: slow}]\n" + tenant))
    named = read(write("classes: [{name: fast}, {name: default}]\n" + tenant))
    assert [file.class_of(file.tenants[0]) for file in (first, named)] == ["fast", "default"]


def test_two_keys_are_valid_while_one_replaces_the_other(write: Write) -> None:
    file = read(write(f"tenants: [{{id: acme, keys: ['{A}', '{B}']}}]"))
    assert file.owners == {digest(b"a"): "acme", digest(b"b"): "acme"}


def test_models_are_all_or_those_that_are_listed(write: Write) -> None:
    listed = read(
        write(f"tenants: [{{id: a, keys: ['{A}'], models: [m1, m2]}}, {{id: b, keys: ['{B}'], models: ['*', x]}}]")
    )
    assert [entry.allowed_models for entry in listed.tenants] == [frozenset({"m1", "m2"}), None]


def test_what_many_have_in_common_may_be_written_once(write: Write) -> None:
    first = f"{{id: a, keys: ['{A}'], rate: &slow {{requests_per_s: 5}}}}"
    file = read(write(f"tenants:\n  - {first}\n  - {{id: b, keys: ['{B}'], rate: *slow}}"))
    assert [entry.rate.requests_per_s for entry in file.tenants if entry.rate] == [5, 5]


def tenant(**more: Any) -> dict[str, Any]:
    return {"id": "acme", "keys": [A], **more}


OF_A_TENANT: dict[str, tuple[dict[str, Any], str]] = {
    "an empty list of keys": ({"keys": []}, "keys: List should have at least 1 item"),
    "three keys": ({"keys": [A, B, C]}, "keys: List should have at most 2 items"),
    "an unknown key": ({"wieght": 2}, "wieght: is not a known key"),
    "an unknown key of two lines": ({"a\nb": 2}, "'a\\nb': is not a known key"),
    "an unknown limit": ({"rate": {"per_s": 5, "tokens_per_s": 5}}, "rate.per_s: is not a known key"),
    "a merge key": ({"<<": {"weight": 2}}, "<<: is not a known key"),
    "no weight": ({"weight": 0}, "weight: Input should be greater than or equal to 0.001, not 0"),
    "a weight that is a word": ({"weight": "2"}, "weight: Input should be a valid number, not '2'"),
    "a weight that is a truth": ({"weight": True}, "weight: Input should be a valid number, not True"),
    "an endless weight": ({"weight": float("inf")}, "weight: Input should be"),
    "a weight that is no number": ({"weight": float("nan")}, "weight: Input should be"),
    "an slo of nothing": ({"slo_ms": 0}, "slo_ms: Input should be greater than 0, not 0"),
    "a class that is not there": ({"class": "bacth"}, "class: unknown class 'bacth'; use fast, batch"),
    "an empty rate": ({"rate": {}}, "rate: sets neither requests_per_s nor tokens_per_s; leave `rate` out"),
    "a rate of nothing": ({"rate": {"requests_per_s": 0}}, "rate.requests_per_s: Input should be"),
    "a rate below nothing": ({"rate": {"tokens_per_s": -5}}, "rate.tokens_per_s: Input should be"),
    "a rate that is a number": ({"rate": 50}, "rate: is not a mapping"),
    "a queue for nobody": ({"queue": {"requests": 0}}, "queue.requests: Input should be"),
    "half a request": ({"queue": {"requests": 1.5}}, "queue.requests: Input should be"),
    "a degrade that is a word": ({"degrade": "yes"}, "degrade: Input should be a valid boolean, not 'yes'"),
    "no models": ({"models": []}, "models: List should have at least 1 item"),
    "a model that is a number": ({"models": [3]}, "models[0]: is not text; put it in quotes"),
}


@pytest.mark.parametrize(("more", "says"), OF_A_TENANT.values(), ids=OF_A_TENANT.keys())
def test_a_fault_of_a_tenant_is_told_with_its_place(more: dict[str, Any], says: str, write: Write) -> None:
    classes = [{"name": "fast"}, {"name": "batch"}]
    (only,) = faults(write(yaml.safe_dump({"classes": classes, "tenants": [tenant(**more)]})))
    assert only.startswith(f"tenants[0] (acme), {says}")
    assert "\n" not in only


NO_MAPPING = "is empty or not a mapping: `tenants:` and a list of tenants was expected"
OF_THE_FILE: dict[str, tuple[Any, str]] = {
    "nothing": (None, NO_MAPPING),
    "a word": ("tenants", NO_MAPPING),
    "a list": ([tenant()], NO_MAPPING),
    "no tenants": ({"classes": [{"name": "a"}]}, "tenants: a list of at least one was expected"),
    "an empty list": ({"tenants": []}, "tenants: a list of at least one was expected"),
    "a mapping of tenants": ({"tenants": {"acme": {}}}, "tenants: a list of at least one was expected"),
    "an unknown section": ({"tenants": [tenant()], "tenant": []}, "tenant: is not a known key; use `classes` and"),
    "no classes": ({"tenants": [tenant()], "classes": []}, "classes: a list of at least one was expected"),
    "a tenant that is a word": ({"tenants": ["acme"]}, "tenants[0]: is not a mapping"),
    "no id": ({"tenants": [{"keys": [A]}]}, "tenants[0], id: is missing"),
    "no keys": ({"tenants": [{"id": "acme"}]}, "tenants[0] (acme), keys: is missing"),
    "a number for an id": ({"tenants": [tenant(id=7)]}, "tenants[0], id: is not text; put it in quotes"),
    "a truth for an id": ({"tenants": [tenant(id=True)]}, "tenants[0], id: is not text; put it in quotes"),
    "an odd id": ({"tenants": [tenant(id="a b")]}, "tenants[0] (a b), id: String should match pattern"),
    "an id of two lines": ({"tenants": [tenant(id="a\n")]}, "tenants[0] ('a\\n'), id: String should match pattern"),
    "the reserved id": ({"tenants": [tenant(id="other")]}, "tenants[0] (other), id: this name is reserved"),
    "an id twice": (
        {"tenants": [tenant(), {"id": "beta", "keys": [B]}, {"id": "acme", "keys": [C]}]},
        "tenants[2] (acme): 'acme' is that of tenants[0] (acme) already",
    ),
    "a key twice": (
        {"tenants": [tenant(), {"id": "beta", "keys": [B, A]}]},
        "tenants[1] (beta): this key is that of tenants[0] (acme) already",
    ),
    "a key twice, in capitals": (
        {"tenants": [tenant(), {"id": "beta", "keys": ["sha256:" + A[7:].upper()]}]},
        "tenants[1] (beta): this key is that of tenants[0] (acme) already",
    ),
    "a key twice in one tenant": (
        {"tenants": [tenant(keys=[A, A])]},
        "tenants[0] (acme): this key is that of tenants[0] (acme) already",
    ),
    "a class twice": (
        {"tenants": [tenant()], "classes": [{"name": "a"}, {"name": "a"}]},
        "classes[1] (a): 'a' is that of classes[0] (a) already",
    ),
    "floors that leave nothing": (
        {"tenants": [tenant()], "classes": [{"name": "a", "floor": 0.5}, {"name": "b", "floor": 0.5}]},
        "classes: their floors come to 1; their sum must be less than 1",
    ),
    "a floor of all": (
        {"tenants": [tenant()], "classes": [{"name": "a", "floor": 1}]},
        "classes[0] (a), floor: Input should be less than 1, not 1",
    ),
    "too many classes": (
        {"tenants": [tenant()], "classes": [{"name": f"c{i}"} for i in range(17)]},
        "classes: there are 17, and 16 is the most",
    ),
}


@pytest.mark.parametrize(("content", "says"), OF_THE_FILE.values(), ids=OF_THE_FILE.keys())
def test_a_fault_is_told_with_its_place(content: Any, says: str, write: Write) -> None:
    (only,) = faults(write(yaml.safe_dump(content)))
    assert only.startswith(says)
    assert "\n" not in only


def test_all_faults_are_told_at_once(write: Write) -> None:
    told = faults(
        write(
            yaml.safe_dump(
                {
                    "clases": [],
                    "classes": [{"name": "a", "floor": 0.9}, {"name": "b", "floor": 0.9}, {"name": "c", "weight": 0}],
                    "tenants": [
                        tenant(weight=-1, slo_ms="soon", rate={"requests_per_s": 0}, colour="red"),
                        {"id": "x", "keys": [B], "class": "d"},
                        {"id": "y", "keys": [C], "class": "c"},
                        {"id": "x", "keys": [B]},
                        "z",
                    ],
                }
            )
        )
    )
    places = [fault.split(":")[0] for fault in told]
    assert sorted(places) == [
        "clases", "classes", "classes[2] (c), weight",
        "tenants[0] (acme), colour", "tenants[0] (acme), rate.requests_per_s", "tenants[0] (acme), slo_ms",
        "tenants[0] (acme), weight", "tenants[1] (x), class", "tenants[3] (x)", "tenants[3] (x)", "tenants[4]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        "weir_this_is_the_key_itself_and_secret",
        "secret",
        "sha256:secret",
        "secret" + A,
        A + "secret",
        12345678,
        ["secret"],
    ],
)
def test_what_stands_in_place_of_a_hash_is_never_repeated(wrong: Any, write: Write) -> None:
    (only,) = faults(write(yaml.safe_dump({"tenants": [{"id": "acme", "keys": [A, wrong]}]})))
    assert only.startswith("tenants[0] (acme), keys")
    assert "secret" not in only
    assert "12345678" not in only


def test_nor_is_a_key_that_stands_under_another_word(write: Write) -> None:
    (only,) = faults(write(yaml.safe_dump({"tenants": [tenant(key="weir_secret")]})))
    assert only == "tenants[0] (acme), key: is not a known key"


def test_an_objective_beyond_the_longest_deadline_is_a_fault(write: Write) -> None:
    file = write(yaml.safe_dump({"tenants": [tenant(slo_ms=120_001)]}))
    assert faults(file, max_slo_ms=120_000) == (
        "tenants[0] (acme), slo_ms: 120001 is more than MAX_DEADLINE_MS, 120000",
    )


UNREADABLE = {
    "not YAML": ("tenants: [", "is not YAML: did not find expected node content (line"),
    "a tab": ("tenants:\n\t- id: a", "is not YAML: found character that cannot start any token (line 2)"),
    "bytes": (b"\xff\xfe\x00", "is not YAML: "),
    "no text": (b"tenants: \xc3\x28", "is not YAML: "),
    "a control character": (b"tenants: \x01", "is not YAML: "),
    "a program": ("tenants: !!python/object/apply:os.getcwd []", "tenants: a list of at least one was expected"),
    "a program's word": ("tenants: !!python/name:os.getcwd x", "is not YAML: could not determine a constructor"),
    "a date that cannot be": ("tenants: 2026-99-99", "contains an invalid value: "),
    "two documents": ("tenants: []\n---\ntenants: []", "holds more than one document (line 2)"),
    "a limit that stands twice": (
        "tenants:\n  - id: a\n    weight: 1\n    weight: 2",
        "has 'weight' twice in one mapping (line 4)",
    ),
    "a list for a key": ("[a]: b", "has a key that is not text (line 1)"),
    "an alias of nothing": ("tenants: *nobody", "*nobody is used before &nobody is complete (line 1)"),
    "an alias of itself": ("tenants: &all [*all]", "*all is used before &all is complete (line 1)"),
    "far too deep": ("[" * 100_000, "is nested more than 32 deep (line 1)"),
    "far too deep, in lines": ("\n".join(" " * i + "a:" for i in range(200)), "is nested more than 32 deep"),
    "too large": (b"#" * (16 * 1024 * 1024 + 1), "is larger than 16777216 bytes"),
}


@pytest.mark.parametrize(("content", "says"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_told_by_its_line(content: str | bytes, says: str, write: Write) -> None:
    (only,) = faults(write(content))
    assert only.startswith(says)
    assert "\n" not in only


def test_a_line_that_cannot_be_read_is_not_quoted(write: Write) -> None:
    (only,) = faults(write("tenants:\n  - keys: ['weir_secret\n"))
    assert "secret" not in only


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    assert faults(tmp_path / "none.yaml") == ("No such file or directory",)
    assert faults(tmp_path) == ("Is a directory",)


def test_a_file_that_may_not_be_read_is_a_fault(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(FROM_THE_DESIGN)

    def forbidden(*_: object) -> None:  # root may read everything, so a file's mode would not do
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    monkeypatch.setattr(Path, "open", forbidden)
    assert faults(file) == ("Permission denied",)


def many(count: int) -> str:
    return "tenants:\n" + "".join(f"- {{id: t{i}, keys: ['sha256:{i:064x}']}}\n" for i in range(count))


def test_ten_thousand_tenants_are_read_and_one_more_is_too_many(write: Write) -> None:
    assert len(read(write(many(MAX_TENANTS))).owners) == MAX_TENANTS
    assert faults(write(many(MAX_TENANTS + 1))) == ("tenants: there are 10001, and 10000 is the most",)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(A))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
ENTRIES = st.dictionaries(
    st.sampled_from(["id", "keys", "weight", "class", "slo_ms", "rate", "queue", "degrade", "models", "name", "floor"]),
    VALUES,
)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd") / "tenants.yaml"


SECTIONS = {"classes": st.lists(ENTRIES, max_size=3), "tenants": st.lists(ENTRIES, max_size=3)}


@given(st.fixed_dictionaries({}, optional=SECTIONS))
def test_whatever_a_file_says_it_is_read_or_its_faults_are_told(odd: Path, content: dict[str, Any]) -> None:
    odd.write_text(yaml.safe_dump(content), encoding="utf-8")
    told = outcome(odd)
    assert isinstance(told, TenantsFile) or (told and not any("\n" in fault for fault in told))


@given(st.binary(max_size=200))
def test_no_bytes_whatever_break_the_reading(odd: Path, content: bytes) -> None:
    odd.write_bytes(content)
    assert not isinstance(outcome(odd), TenantsFile)


def outcome(file: Path) -> TenantsFile | tuple[str, ...]:
    try:
        return read(file)
    except Faulty as refused:
        return refused.faults
