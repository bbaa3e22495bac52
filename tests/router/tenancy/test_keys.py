"""Keys: made, hashed, found, and never guessed, told or remembered."""

from __future__ import annotations

import hmac
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.tenancy import keys
from services.router.tenancy.keys import LONGEST_KEY_BYTES, KeyRing, bearer
from services.runtime.apikey import PREFIX, digest, new_key, parse, written

KEYS = [b"weir_%d" % number for number in range(100)]


def ring(*known: bytes) -> KeyRing:
    return KeyRing({digest(key): f"owner of {key!r}" for key in known})


def test_a_new_key_is_32_random_bytes_behind_its_prefix_and_its_hash_is_what_is_written() -> None:
    key, said = new_key()
    assert key.startswith(PREFIX)
    assert len(key) == len(PREFIX) + 43
    assert said == f"sha256:{sha256(key.encode()).hexdigest()}"
    assert parse(said) == digest(key.encode())


def test_no_two_keys_are_equal() -> None:
    assert len({new_key()[0] for _ in range(1000)}) == 1000


@given(st.binary(max_size=64))
def test_a_hash_is_read_as_it_was_written_in_either_case(key: bytes) -> None:
    text = written(digest(key))
    assert parse(text) == digest(key)
    assert parse("sha256:" + text.removeprefix("sha256:").upper()) == digest(key)


@pytest.mark.parametrize(
    "text", ["", "sha256:", "0" * 64, "sha256:" + "0" * 63, "sha256:" + "0" * 65, "sha256:" + "g" * 64,
             "SHA256:" + "0" * 64, "sha512:" + "0" * 64, "sha256:" + "0" * 64 + "\n", "sha256:" + "٠" * 64],
)  # fmt: skip
def test_anything_else_is_no_hash(text: str) -> None:
    assert parse(text) is None


HEADERS = [
    (b"Bearer weir_abc", b"weir_abc"),
    (b"bearer weir_abc", b"weir_abc"),
    (b"BEARER weir_abc", b"weir_abc"),
    (b"  Bearer \t weir_abc  ", b"weir_abc"),
    ("Bearer schlüssel".encode(), "schlüssel".encode()),
    (b"Bearer \xff\xfe\x00", b"\xff\xfe\x00"),
    (b"Bearer " + b"k" * LONGEST_KEY_BYTES, b"k" * LONGEST_KEY_BYTES),
    (None, None),
    (b"", None),
    (b"Bearer", None),
    (b"Bearer ", None),
    (b"Bearerweir_abc", None),
    (b"weir_abc", None),
    (b"Basic d2VpcjphYmM=", None),
    (b"Bearer a b", None),
    (b"Bearer " + b"k" * (LONGEST_KEY_BYTES + 1), None),
    (b"Bearer " + b"k" * 100_000, None),
]


@pytest.mark.parametrize(("header", "key"), HEADERS)
def test_the_key_is_what_follows_the_word_bearer(header: bytes | None, key: bytes | None) -> None:
    assert bearer(header) == key


@given(st.binary(max_size=600))
def test_no_header_whatever_breaks_the_reading(header: bytes) -> None:
    for value in (header, b"Bearer " + header):
        key = bearer(value)
        assert key is None or 0 < len(key) <= LONGEST_KEY_BYTES
        assert ring(b"known").owner(key or b"") == (None if key != b"known" else "owner of b'known'")


def test_each_key_has_its_owner_and_no_other_key_has_any() -> None:
    known = ring(*KEYS)
    assert [known.owner(key) for key in KEYS] == [f"owner of {key!r}" for key in KEYS]
    for key in KEYS:
        assert known.owner(key[:-1] + b"x") is None
        assert known.owner(key + b"x") is None
        assert known.owner(key.upper()) is None
    assert known.owner(b"") is None
    assert known.owner(digest(KEYS[0])) is None  # the hash is no key
    assert known.owner(written(digest(KEYS[0])).encode()) is None


def test_a_wrong_key_costs_the_same_one_comparison_of_whole_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(kept: bytes, shown: bytes) -> bool:
        compared.append((len(kept), len(shown)))
        return hmac.compare_digest(kept, shown)

    monkeypatch.setattr(keys, "hmac", type("stand_in", (), {"compare_digest": staticmethod(compare)}))
    known = ring(*KEYS)
    for key in (KEYS[0], KEYS[0][:-1] + b"x", b"?" * LONGEST_KEY_BYTES):
        known.owner(key)
    assert compared == [(32, 32)] * 3


def test_a_hundred_thousand_wrong_keys_leave_nothing_behind() -> None:
    known = ring(*KEYS)
    before = sys.getsizeof(known._owners), len(known._owners)
    assert not any(known.owner(b"guess %d" % number) for number in range(100_000))
    assert (sys.getsizeof(known._owners), len(known._owners)) == before


def test_a_key_ring_does_not_tell_its_keys() -> None:
    said = repr(ring(b"weir_secret"))
    assert said == "<KeyRing of 1 keys>"
