"""Every target of the fuzzer, for a few hundred inputs that are the same each time."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.fuzz.cutting import cut
from tests.fuzz.mutating import MAX_BYTES, mutants
from tests.fuzz.targets import TARGETS

INPUTS = 300
SEED = 17


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.filterwarnings("default")  # parsers of others warn about what they repair
def test_a_reader_of_strangers_bytes_refuses_what_it_declares_and_nothing_else(name: str) -> None:
    target = TARGETS[name]
    for data in itertools.islice(mutants(target.seeds, random.Random(SEED)), INPUTS):
        target.one(data)


def test_the_same_seed_gives_the_same_inputs_within_their_size() -> None:
    first, second = (list(itertools.islice(mutants((b"abc", b"def"), random.Random(3)), 200)) for _ in range(2))
    assert first == second
    assert max(map(len, first)) <= MAX_BYTES


def test_cutting_changes_no_byte() -> None:
    for first in range(256):
        whole, pieces = cut(bytes([first]) + b"0123456789" * 5)
        assert b"".join(pieces) == whole
        assert all(pieces)


def test_a_target_finds_what_it_is_there_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that lets a duplicate key pass is told by the target of JSON."""
    monkeypatch.setattr("services.runtime.strictjson.loads", lambda data: {"a": 2})
    with pytest.raises(AssertionError):
        TARGETS["json"].one(b'{"a":1,"a":2}')
