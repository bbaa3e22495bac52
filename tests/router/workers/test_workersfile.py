"""The worker list: what may stand in it, and that a fault names itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.router.upstreams.call import MAX_MODELS
from services.router.workers.workersfile import MAX_WORKERS, from_urls, read

OPENAI = "name: a, kind: openai, url: 'http://x/v1'"


def written(tmp_path: Path, *entries: str) -> Path:
    listing = tmp_path / "workers.yaml"
    listing.write_text("workers:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries))
    return listing


def test_slots_are_a_number_or_auto_or_announced(tmp_path: Path) -> None:
    specs = read(
        written(
            tmp_path,
            f"{OPENAI}, slots: 32, lookahead: 1, models: [m, n]",
            "name: b, kind: openai, url: 'https://y/v1/', slots: auto",
            "name: c, kind: weir, url: 'http://z', lookahead: 0",
        )
    )
    assert [(one.slots, one.lookahead, one.models) for one in specs] == [
        (32, 1, ["m", "n"]),
        ("auto", None, []),
        (None, 0, []),
    ]
    assert specs[1].url == "https://y/v1"


def test_a_desk_says_the_slots_of_a_server(tmp_path: Path) -> None:
    (spec,) = read(written(tmp_path, f"{OPENAI}, desk: 'http://d:8020/a/'"))
    assert (spec.slots, spec.desk, spec.sends_ahead) == (None, "http://d:8020/a", 0)


def test_by_default_requests_are_sent_ahead_to_weir_workers_only(tmp_path: Path) -> None:
    specs = read(
        written(
            tmp_path,
            "name: a, kind: weir, url: 'http://x'",
            f"{OPENAI.replace('name: a', 'name: b')}, slots: 32",
            "name: c, kind: openai, url: 'http://y', slots: auto",
            "name: d, kind: openai, url: 'http://z', slots: 32, lookahead: auto",
        )
    )
    assert [one.sends_ahead for one in specs] == ["auto", 0, 0, "auto"]


FAULTS = {
    "neither a number nor auto": (f"{OPENAI}, slots: many", "auto"),
    "no slots at all": (f"{OPENAI}, slots: 0", "greater than or equal to 1"),
    "too many slots": (f"{OPENAI}, slots: 100001", "less than or equal to 100000"),
    "auto with a look-ahead": (f"{OPENAI}, slots: auto, lookahead: 1", "leave `lookahead` out"),
    "auto with a timed look-ahead": (f"{OPENAI}, slots: auto, lookahead: auto", "leave `lookahead` out"),
    "a look-ahead of two": (f"{OPENAI}, slots: 1, lookahead: 2", "less than or equal to 1"),
    "a desk that is no address": (f"{OPENAI}, desk: desk-0", "'desk-0' is not an http:// or https:// address"),
    "a desk beside slots": (f"{OPENAI}, slots: 4, desk: 'http://d/a'", "leave `slots` and `lookahead` out"),
    "a desk with a look-ahead": (f"{OPENAI}, lookahead: 1, desk: 'http://d/a'", "leave `slots` and `lookahead` out"),
    "a desk of a Weir worker": ("name: a, kind: weir, url: 'http://x', desk: 'http://d/a'", "leave `desk` out"),
    "models of a Weir worker": ("name: a, kind: weir, url: 'http://x', models: [m]", "leave `models` out"),
    "a model without a name": (f"{OPENAI}, slots: 1, models: ['']", "at least 1 character"),
    "too many models": (f"{OPENAI}, slots: 1, models: [{', '.join(map(str, range(MAX_MODELS + 1)))}]", "MODELS"),
    "a field that is not kept back": (f"{OPENAI}, slots: 1, allow: [top_k]", "'top_k'.*not a withheld field"),
    "a length to be allowed": (f"{OPENAI}, slots: 1, allow: [n_predict]", "'n_predict'.*not a withheld field"),
    "an allowance for a Weir worker": ("name: a, kind: weir, url: 'http://x', allow: [priority]", "leave `allow`"),
    "a salt for a Weir worker": ("name: a, kind: weir, url: 'http://x', cache_salt: true", "leave `allow`"),
    "a silent Weir worker": (
        "name: a, kind: weir, url: 'http://x', answers_when_busy: false",
        "leave `answers_",
    ),
    "a name with a space": ("name: a b, kind: weir, url: 'http://x'", "NAME"),
}


@pytest.mark.parametrize(("entry", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_in_an_entry_is_named(entry: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says) as fault:
        read(written(tmp_path, entry))
    assert "workers.yaml" in str(fault.value)


def test_every_fault_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="WORKERS_FILE") as fault:
        read(written(tmp_path, "name: a, kind: grpc, url: 'http://x'", "name: b, kind: weir, url: nowhere", OPENAI))
    for said in ("'weir' or 'openai'", "not an http://", "needs `slots`"):
        assert said in str(fault.value)


def test_a_field_that_stands_twice_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 'slots' twice"):
        read(written(tmp_path, f"{OPENAI}, slots: 1, slots: 8"))


def test_there_are_so_many_workers_and_no_more(tmp_path: Path) -> None:
    entries = [f"name: w{number}, kind: weir, url: 'http://x'" for number in range(MAX_WORKERS + 1)]
    assert len(read(written(tmp_path, *entries[:-1]))) == MAX_WORKERS
    with pytest.raises(ValueError, match="at most 256 items"):
        read(written(tmp_path, *entries))


def test_addresses_alone_are_weir_workers() -> None:
    assert [(one.name, one.kind, one.url) for one in from_urls(" http://a:1 ,, http://b:2/")] == [
        ("worker-0", "weir", "http://a:1"),
        ("worker-1", "weir", "http://b:2"),
    ]
    with pytest.raises(ValueError, match="WORKERS"):
        from_urls("")


def test_what_a_server_may_get_and_whether_it_is_given_salts_stand_in_its_entry(tmp_path: Path) -> None:
    one, other = read(
        written(
            tmp_path,
            f"{OPENAI}, slots: 1, allow: [priority, service_tier], cache_salt: true, answers_when_busy: false",
            "name: b, kind: openai, url: 'http://y/v1', slots: 1",
        )
    )
    assert (one.allow, one.cache_salt, one.answers_when_busy) == (["priority", "service_tier"], True, False)
    assert (other.allow, other.cache_salt, other.answers_when_busy) == ([], False, True)
