"""What the fuzzer keeps is replayed, and a little of what it does; and both ways to read a line are one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.bench.governor.fuzz import BOUNDS, CAP, CORPUS, TOKENS, Broken, Fuzz, Peer, as_read, kept_corpus
from services.governor.frame import read, read_with_care
from services.governor.gate import Gate
from services.governor.protocol import Ended, Turn
from tests.governor.talk import ping, upload

KEPT = sorted(path.name for path in CORPUS.glob("*.bin"))


def test_there_is_a_corpus() -> None:
    assert len(KEPT) > 10


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("at_once", [1, 7, 65_536])
def test_a_kept_conversation_breaks_nothing_however_it_is_cut(name: str, at_once: int) -> None:
    gate = Gate(cap=CAP, bounds=BOUNDS, random=lambda: 0.0)
    peer, data = Peer(gate, 0.0), (CORPUS / name).read_bytes()
    for start in range(0, len(data), at_once):
        peer.take(peer.conversation.receive(data[start : start + at_once], 0.0))
        while peer.work is not None:
            peer.end_job(Ended.DONE, 0.0)
        assert gate.held_bytes <= BOUNDS.total_bytes
    peer.take(peer.conversation.half_closed(0.0))
    assert peer.closed or peer.work is not None
    if peer.work is not None:
        peer.end_job(Ended.FAILED, 0.0)
    peer.conversation.lost()
    assert (gate.held_bytes, gate.waiting, gate.standing.inflight) == (0, 0, 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_two_thousand_broken_lines_break_nothing(seed: int) -> None:
    fuzz = Fuzz(seed, kept_corpus())
    fuzz.run(2000)
    assert fuzz.replies > 500
    assert fuzz.most_held > 100_000  # it came far enough to hold something


@pytest.mark.parametrize(
    "said", [b'{"v":0}\n', b"half", b'{"v":0,"verb":"confirm","job":"J","seq":1,"ttl_ms":0,"status":"fine"}\n']
)
def test_the_fuzzer_sees_a_reply_that_is_none(said: bytes) -> None:
    with pytest.raises(Broken):
        Peer(Gate(cap=CAP, bounds=BOUNDS, random=lambda: 0.0), 0.0).take(Turn(bytearray(said)))


LINES = [line.rstrip() for line in (ping(), *upload(b"hello world!", ttl_ms=5))]
LINES += [line.replace(b": ", b":").replace(b", ", b",") for line in LINES]


@given(
    st.sampled_from(LINES),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(TOKENS)), max_size=3),
)
def test_the_short_way_to_read_a_line_reads_what_the_careful_way_does(
    line: bytes, changes: list[tuple[float, int, bytes]]
) -> None:
    for where, cut, token in changes:
        at = int(where * len(line))
        line = line[:at] + token + line[at + cut :]
    assert as_read(read, line) == as_read(read_with_care, line)


@pytest.mark.parametrize(
    "number", [b"-0", b"0", b"-1", b"1.0", b"1e2", b"null", b"18446744073709551615", b'"1"', b"01"]
)
@pytest.mark.parametrize("key", [b"v", b"seq", b"ttl_ms", b"chunks", b"total_bytes", b"index", b"offset"])
def test_any_number_is_read_alike_in_both_ways(key: bytes, number: bytes) -> None:
    for line in LINES[4:]:
        start = line.find(b'"' + key + b'":')
        if start >= 0:
            start += len(key) + 3
            end = min(at for at in (line.find(b",", start), line.find(b"}", start)) if at >= 0)
            changed = line[:start] + number + line[end:]
            assert as_read(read, changed) == as_read(read_with_care, changed)


def test_a_key_that_stands_twice_is_read_alike_even_where_another_is_missing() -> None:
    line = b'{"v":0,"verb":"ping","job":"J","seq":1,"seq":2}'
    frame = read(line)
    assert frame is not None
    assert (frame.seq, frame.ttl_ms) == (2, 0)
