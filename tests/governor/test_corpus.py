"""Kept conversations break nothing however they are cut or changed; and both ways to read a line are one."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.governor import frame
from services.governor.frame import read
from services.governor.job import Ended
from tests.fuzz.mutating import mutants
from tests.fuzz.targets import CONVERSATIONS, read_in_one_way
from tests.governor.talk import Peer, Rig, kinds, ping, upload

BOUNDS: dict[str, Any] = {
    "line_bytes": 4096,
    "jobs": 6,
    "connection_bytes": 131_072,
    "total_bytes": 262_144,
    "idle_s": 5.0,
}
KEPT = {path.name: path.read_bytes() for path in sorted(CONVERSATIONS.glob("*.bin"))}
TOKENS = (
    b"null",
    b"-0",
    b"1.0",
    b"1e2",
    b"18446744073709551616",
    b'""',
    b"{}",
    b"[[",
    b'"\\ud800"',
    b"\xff",
    b",",
    b'"',
)


def test_there_is_a_corpus() -> None:
    assert len(KEPT) > 10


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("at_once", [1, 7, 65_536])
def test_a_kept_conversation_breaks_nothing_however_it_is_cut(name: str, at_once: int) -> None:
    rig, data = Rig(cap=2, **BOUNDS), KEPT[name]
    peer = rig.connect()
    for start in range(0, len(data), at_once):
        peer.send(data[start : start + at_once])
        while peer.work is not None:
            peer.finish()
        assert rig.gate.held_bytes <= BOUNDS["total_bytes"]
    peer.hang_up_half()
    assert peer.closed or peer.work is not None
    if peer.work is not None:
        peer.finish(Ended.FAILED)
    peer.session.lost()
    assert (rig.gate.held_bytes, rig.gate.waiting, rig.gate.status.inflight) == (0, 0, 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_peers_that_send_broken_conversations_side_by_side_stay_within_the_bounds_and_leave_nothing(seed: int) -> None:
    chance, rig = random.Random(seed), Rig(cap=2, **BOUNDS)
    peers = [rig.connect() for _ in range(4)]
    replies = most_held = 0
    for sent in itertools.islice(mutants(list(KEPT.values()), chance), 400):
        at = chance.randrange(len(peers))
        for line in sent.splitlines(keepends=True):
            for reply in peers[at].send(line):
                kinds(reply)
                replies += 1
            _something_else(peers[at], chance)
            most_held = max(most_held, rig.gate.held_bytes)
            assert 0 <= rig.gate.held_bytes <= BOUNDS["total_bytes"]
            assert 0 <= rig.gate.status.inflight <= 2
        if peers[at].closed or chance.random() < 0.1:
            _leave(peers[at])
            peers[at] = rig.connect()
    assert replies > 500
    assert most_held > 10_000, "it came far enough to hold something"
    for peer in peers:
        _leave(peer)
    assert (rig.gate.held_bytes, rig.gate.waiting, rig.gate.status.inflight) == (0, 0, 0)


def _something_else(peer: Peer, chance: random.Random) -> None:
    """A job ends, or the connection does what connections do."""
    which = chance.random()
    if peer.work is not None and which < 0.4:
        peer.finish(chance.choice(list(Ended)))
    elif which < 0.02:
        peer.hang_up_half()
    elif which < 0.04:
        peer.session.stop(chance.choice((0, 1)))
    elif which < 0.07:
        peer.deferred(peer.session.go_on(peer.rig.now))
    elif which < 0.08:
        peer.rig.now += BOUNDS["idle_s"]
        peer.deferred(peer.session.idled(peer.rig.now))


def _leave(peer: Peer) -> None:
    peer.session.lost()
    if peer.work is not None:
        peer.finish(Ended.CANCELLED)


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
    read_in_one_way(line)


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
            read_in_one_way(line[:start] + number + line[end:])


def test_two_readings_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "read_with_care", lambda line: None)
    with pytest.raises(AssertionError, match="read in two ways"):
        read_in_one_way(LINES[0])


def test_a_key_that_stands_twice_is_read_alike_even_where_another_is_missing() -> None:
    line = b'{"v":0,"verb":"ping","job":"J","seq":1,"seq":2}'
    found = read(line)
    assert found is not None
    assert (found.seq, found.ttl_ms) == (2, 0)
