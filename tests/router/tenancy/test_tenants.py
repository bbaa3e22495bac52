"""Who is asking: by key with a file, by name in the lab; what a reload keeps, and what an invented identity costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.router.tenancy.rates import Rate
from services.router.tenancy.tenants import OTHER, FileTenants, LabTenants, Reload, Tenant, Tenants
from services.router.tenancy.tenantsfile import Faulty
from services.runtime.apikey import digest, written
from services.runtime.errors import BadInput, Unauthorized, problem

START = 1000.0
CLASSES = [{"name": "interactive", "weight": 8}, {"name": "normal", "weight": 2}, {"name": "batch", "weight": 1}]


def by_key(tenants: Tenants, key: str | bytes, named: str | None = None, **headers: str) -> Tenant:
    raw = key if isinstance(key, bytes) else key.encode()
    said = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return tenants.identify({**said, b"authorization": b"Bearer " + raw}.get, named)


def by_name(tenants: Tenants, name: str | bytes | None, named: str | None = None) -> Tenant:
    said = {} if name is None else {b"x-tenant": name if isinstance(name, bytes) else name.encode()}
    return tenants.identify(said.get, named)


def entry(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "keys": [written(digest(f"key-of-{id}".encode()))], **more}


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(*entries: dict[str, Any], classes: list[dict[str, Any]] | None = None) -> Path:
        file = tmp_path / "tenants.yaml"
        file.write_text(yaml.safe_dump({"classes": CLASSES if classes is None else classes, "tenants": list(entries)}))
        return file

    return to


# ---- with a file


def test_the_key_alone_says_who_is_asking_whatever_header_and_body_say(write: Write) -> None:
    tenants = FileTenants(write(entry("a"), entry("b")))
    assert by_key(tenants, "key-of-a", named="b", x_tenant="b").id == "a"
    assert by_key(tenants, "key-of-b", named="a", x_tenant="a").id == "b"
    assert by_key(tenants, "key-of-a", named="\x00 no name", x_tenant="no name either").id == "a"


@pytest.mark.parametrize(
    "header",
    [
        None, b"", b"Bearer", b"Bearer key of a", b"Bearer key-of-b", b"Basic a2V5LW9mLWE=", b"key-of-a",
        b"Bearer \xff", b"Bearer " + b"k" * 9999,
    ],
)  # fmt: skip
def test_without_a_known_key_there_is_a_401_with_its_challenge_and_no_invitation(
    header: bytes | None, write: Write
) -> None:
    tenants = FileTenants(write(entry("a")))
    said = {b"x-tenant": b"a"} if header is None else {b"x-tenant": b"a", b"authorization": header}
    with pytest.raises(Unauthorized) as refused:
        tenants.identify(said.get, "a")
    status, headers, body = problem(refused.value)
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (401, "invalid_api_key", "authentication_error")
    assert dict(headers)[b"x-should-retry"] == b"false"
    assert dict(headers)[b"www-authenticate"] == b"Bearer"
    assert b"retry-after" not in dict(headers)
    assert "key-of-a" not in error["message"]


def test_a_tenant_is_what_its_entry_says(write: Write) -> None:
    rate = {"requests_per_s": 5, "tokens_per_s": 100}
    tenants = FileTenants(
        write(
            entry("a", **{"class": "normal"}, slo_ms=900, degrade=True, models=["m"], rate=rate, weight=3),
            entry("b", queue={"requests": 7, "cost_tokens": 500}),
        ),
        queue_requests=11,
        queue_bytes=4096,
    )
    a, b = by_key(tenants, "key-of-a"), by_key(tenants, "key-of-b")
    assert (a.class_name, a.slo_ms, a.degrade, a.paused) == ("normal", 900, True, False)
    assert (b.class_name, b.slo_ms, b.degrade, b.rate) == ("interactive", None, False, None)
    assert (a.allows("m"), a.allows("n"), b.allows("n")) == (True, False, True)
    assert a.rate is not None
    assert [a.rate.try_take(START, 0) for _ in range(5)] == [None] * 5
    assert a.rate.try_take(START, 0) == pytest.approx(0.2)
    specs = {spec.id: spec for spec in tenants.specs()}
    assert (specs["a"].weight, specs["a"].class_name) == (3, "normal")
    assert [(spec.bounds.requests, spec.bounds.cost_tokens, spec.bounds.bytes) for spec in tenants.specs()] == [
        (11, inf, 4096),
        (7, 500, 4096),
    ]
    assert [(spec.name, spec.weight, spec.floor) for spec in tenants.classes()] == [
        ("interactive", 8, 0), ("normal", 2, 0), ("batch", 1, 0),
    ]  # fmt: skip
    assert tenants.ids() == ["a", "b"]


def test_a_faulty_file_is_refused_at_the_start(write: Write) -> None:
    with pytest.raises(Faulty):
        FileTenants(write(entry("a"), entry("a")))
    with pytest.raises(Faulty):
        FileTenants(write(entry("a", slo_ms=500)), max_slo_ms=400)


# ---- reload


def reload(tenants: FileTenants) -> Reload:
    return tenants.adopt(tenants.read())


def test_a_reload_tells_who_joined_who_left_and_who_changed(write: Write) -> None:
    tenants = FileTenants(write(entry("stays"), entry("leaves"), entry("changes")))
    write(entry("stays"), entry("changes", weight=9), entry("joins"))
    assert reload(tenants) == Reload(joined=("joins",), left=("leaves",), changed=("changes",))
    assert by_key(tenants, "key-of-joins").id == "joins"
    assert {spec.id: spec.weight for spec in tenants.specs()} == {"stays": 1, "changes": 9, "joins": 1}
    with pytest.raises(Unauthorized):
        by_key(tenants, "key-of-leaves")
    assert reload(tenants) == Reload()


def test_what_a_request_holds_stays_as_it_was_at_the_door(write: Write) -> None:
    tenants = FileTenants(write(entry("leaves", slo_ms=100), entry("changes", slo_ms=100)))
    leaves, changes = by_key(tenants, "key-of-leaves"), by_key(tenants, "key-of-changes")
    write(entry("changes", slo_ms=200))
    reload(tenants)
    assert (leaves.slo_ms, changes.slo_ms) == (100, 100)
    assert by_key(tenants, "key-of-changes").slo_ms == 200


@pytest.mark.parametrize("broken", ["", "tenants: [", "tenants: [{id: a}]"])
def test_with_a_fault_in_the_file_the_old_one_stays_in_force(broken: str, write: Write) -> None:
    file = write(entry("a"), entry("b", slo_ms=5))
    tenants = FileTenants(file)
    before = tenants.specs(), by_key(tenants, "key-of-b")
    file.write_text(broken)
    with pytest.raises(Faulty):
        reload(tenants)
    assert (tenants.specs(), by_key(tenants, "key-of-b")) == before
    file.unlink()
    with pytest.raises(Faulty):
        reload(tenants)
    assert by_key(tenants, "key-of-a").id == "a"


def test_classes_and_who_is_of_them_may_change(write: Write) -> None:
    tenants = FileTenants(write(entry("a"), entry("b", **{"class": "batch"})))
    write(entry("a"), entry("b", **{"class": "batch"}), classes=[{"name": "new"}, {"name": "batch"}])
    reading = tenants.read()
    assert [spec.name for spec in reading.classes] == ["new", "batch"]
    assert [spec.class_name for spec in reading.specs] == ["new", "batch"]
    assert [spec.class_name for spec in tenants.specs()] == ["interactive", "batch"]  # not in force yet
    assert tenants.adopt(reading) == Reload(changed=("a", "b"))
    assert by_key(tenants, "key-of-a").class_name == "new"
    assert [spec.class_name for spec in tenants.specs()] == ["new", "batch"]


def spent(rate: Rate | None) -> Rate:
    assert rate is not None
    while rate.try_take(START, 0) is None:
        pass
    return rate


def test_a_rate_keeps_its_fill_unless_it_changed_itself(write: Write) -> None:
    slow, fast = {"requests_per_s": 2}, {"requests_per_s": 4}
    tenants = FileTenants(write(entry("same", rate=slow), entry("other_weight", rate=slow), entry("faster", rate=slow)))
    for id in tenants.ids():
        spent(by_key(tenants, f"key-of-{id}").rate)
    write(entry("same", rate=slow), entry("other_weight", rate=slow, weight=5), entry("faster", rate=fast))
    assert reload(tenants).changed == ("other_weight", "faster")
    waits = {}
    for id in tenants.ids():
        rate = by_key(tenants, f"key-of-{id}").rate
        assert rate is not None
        waits[id] = rate.try_take(START, 0)
    assert waits == {"same": pytest.approx(0.5), "other_weight": pytest.approx(0.5), "faster": None}


def test_a_key_is_replaced_without_a_moment_in_which_none_is_valid(write: Write) -> None:
    old, new = written(digest(b"old")), written(digest(b"new"))
    tenants = FileTenants(write({"id": "a", "keys": [old]}))
    write({"id": "a", "keys": [old, new]})
    assert reload(tenants).changed == ("a",)
    assert [by_key(tenants, key).id for key in ("old", "new")] == ["a", "a"]
    write({"id": "a", "keys": [new]})
    reload(tenants)
    assert by_key(tenants, "new").id == "a"
    with pytest.raises(Unauthorized):
        by_key(tenants, "old")


def test_a_file_may_be_read_apart_and_adopted_at_once(write: Write) -> None:
    tenants = FileTenants(write(entry("a")))
    write(entry("b"))
    reading = tenants.read()
    assert by_key(tenants, "key-of-a").id == "a"  # nothing has changed yet
    assert tenants.adopt(reading) == Reload(joined=("b",), left=("a",))
    assert by_key(tenants, "key-of-b").id == "b"


# ---- pause


def test_a_paused_tenant_is_known_and_marked_until_it_is_resumed(write: Write) -> None:
    for tenants, find in (
        (FileTenants(write(entry("a"), entry("b"))), lambda of, id: by_key(of, f"key-of-{id}")),
        (LabTenants(4), by_name),
    ):
        assert find(tenants, "a").paused is False
        held = find(tenants, "a")
        assert tenants.pause("a")
        assert find(tenants, "a").paused
        assert not find(tenants, "b").paused
        assert not held.paused  # whoever was let in goes on
        assert tenants.pause("a", paused=False)
        assert not find(tenants, "a").paused
        assert not tenants.pause("nobody")
        assert not tenants.pause("nobody", paused=False)
        assert "nobody" not in tenants.ids()


def test_a_pause_outlasts_a_reload_and_ends_with_its_tenant(write: Write) -> None:
    tenants = FileTenants(write(entry("same"), entry("changes"), entry("leaves")))
    for id in tenants.ids():
        tenants.pause(id)
    write(entry("same"), entry("changes", weight=2))
    reload(tenants)
    assert [by_key(tenants, f"key-of-{id}").paused for id in ("same", "changes")] == [True, True]
    write(entry("same"), entry("changes", weight=2), entry("leaves"))
    reload(tenants)
    assert not by_key(tenants, "key-of-leaves").paused


# ---- before the body is read


def test_with_a_file_the_headers_tell_and_a_stranger_is_refused_before_its_body_is_read(write: Write) -> None:
    tenants = FileTenants(write(entry("a")))
    known = tenants.by_header({b"authorization": b"Bearer key-of-a"}.get)
    assert known is not None
    assert known.id == "a"
    with pytest.raises(Unauthorized):
        tenants.by_header({b"x-tenant": b"a"}.get)


def test_in_the_lab_the_headers_may_leave_it_to_the_body() -> None:
    tenants = LabTenants(4)
    assert tenants.by_header({b"authorization": b"Bearer any"}.get) is None
    assert tenants.by_body("a").id == "a"
    assert tenants.by_body(None).id == "demo"


# ---- the lab


def test_in_the_lab_a_name_is_believed_the_headers_before_the_bodys() -> None:
    tenants = LabTenants(4)
    assert by_name(tenants, "a", named="b").id == "a"
    assert by_name(tenants, None, named="b").id == "b"
    assert by_name(tenants, None).id == "demo"
    assert by_name(tenants, "demo", named="ignored").id == "demo"


def test_in_the_lab_every_key_is_accepted_and_ignored() -> None:
    tenants = LabTenants(4)
    for key in ("weir_abc", b"\xff\xfe", ""):
        assert by_key(tenants, key).id == "demo"
        assert by_key(tenants, key, x_tenant="a").id == "a"


def test_in_the_lab_a_tenant_may_be_degraded_use_every_model_and_has_no_objective_of_its_own() -> None:
    tenants = LabTenants(4)
    a = by_name(tenants, "a")
    assert (a.degrade, a.allows("any"), a.slo_ms, a.rate, a.class_name) == (True, True, None, None, "default")
    assert tenants.specs() == []
    assert [spec.name for spec in tenants.classes()] == ["default"]


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "é", "x" * 65, "a\n", "a\x00", "<script>"])
def test_what_is_no_name_is_refused_by_the_place_it_stood_in(name: str) -> None:
    tenants = LabTenants(4)
    with pytest.raises(BadInput) as in_header:
        by_name(tenants, name)
    with pytest.raises(BadInput) as in_body:
        by_name(tenants, None, named=name)
    assert (in_header.value.param, in_body.value.param) == ("X-Tenant", "tenant")
    assert tenants.ids() == ["demo"]


def test_each_name_has_a_rate_of_its_own_and_those_beyond_the_last_share_one() -> None:
    tenants = LabTenants(3, tenant_rps=2)
    first, second = by_name(tenants, "first"), by_name(tenants, "second")
    spent(first.rate)
    assert second.rate is not None
    assert second.rate.try_take(START, 0) is None
    third, fourth = by_name(tenants, "third"), by_name(tenants, "fourth")
    assert (third.id, fourth.id) == (OTHER, OTHER)
    assert third.rate is fourth.rate
    assert by_name(tenants, OTHER) is third


@given(st.lists(st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True), max_size=60), st.integers(1, 8))
def test_however_many_names_are_invented_the_set_of_tenants_stays_closed(names: list[str], most: int) -> None:
    tenants = LabTenants(max_names=most)
    seen = {by_name(tenants, name).id for name in names}
    assert len(seen - {OTHER}) <= most
    assert seen <= {*tenants.ids(), OTHER}
    assert by_name(tenants, None).id == "demo"


# ---- invented identities


def identities(count: int) -> list[str]:
    return [f"invented-{number}" for number in range(count)]


def test_a_hundred_thousand_invented_names_add_no_state_in_the_lab() -> None:
    tenants = LabTenants(16)
    for name in identities(15):
        by_name(tenants, name)
    before = tenants.ids(), sys.getsizeof(tenants._known)
    assert len(before[0]) == 16
    assert {by_name(tenants, name).id for name in identities(100_000)[15:]} == {OTHER}
    assert {by_name(tenants, None, named=name).id for name in identities(100_000)[15:]} == {OTHER}
    assert {by_key(tenants, name).id for name in identities(1000)} == {"demo"}
    assert (tenants.ids(), sys.getsizeof(tenants._known)) == before


def test_a_hundred_thousand_invented_identities_add_no_state_beside_a_file(write: Write) -> None:
    tenants = FileTenants(write(entry("a"), entry("b")))
    before = tenants.ids(), sys.getsizeof(tenants._known), repr(tenants._reading.ring)
    refused = 0
    for name in identities(100_000):
        try:
            by_key(tenants, name, named=name, x_tenant=name)
        except Unauthorized:
            refused += 1
    assert refused == 100_000
    assert {by_key(tenants, "key-of-a", named=name, x_tenant=name).id for name in identities(100_000)} == {"a"}
    assert (tenants.ids(), sys.getsizeof(tenants._known), repr(tenants._reading.ring)) == before


def test_a_tenant_tells_nothing_of_its_keys(write: Write) -> None:
    tenants = FileTenants(write(entry("a")))
    said = repr(tenants) + repr(by_key(tenants, "key-of-a")) + repr(tenants.specs()) + repr(tenants._reading.ring)
    assert "key-of-a" not in said
    assert digest(b"key-of-a").hex() not in said
