"""The gate counts everything that a connection keeps: no sequence of frames makes it hold more than it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.governor.backends import StubBackend
from services.governor.frame import MAX_AUTH_BYTES, MAX_NAME_BYTES, NO_JOB_NAME
from services.governor.gate import Gate, GovernorLimits
from services.governor.job import Ended
from services.governor.protocol import MAX_OUT_BYTES, GovernorSession
from services.governor.server import ServerLimits
from tests.governor.stand import governor, until
from tests.governor.talk import Peer, Rig, chunk, frame, manifest, ping, short, upload
from tests.virtual import run

DATA = b"hello world!"
TEXTS = (str, bytes, bytearray)
SHARED = (Gate, GovernorLimits)  # by all connections


def texts_of(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Every text and buffer that can be reached from a thing, each object once; no code and no class."""
    if (
        id(thing) in seen
        or isinstance(thing, (*SHARED, type, int, float, Enum))
        or thing is None
        or thing is NO_JOB_NAME
    ):
        return
    seen.add(id(thing))
    if isinstance(thing, TEXTS):
        yield thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from texts_of(key, seen)
            yield from texts_of(value, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for part in thing:
            yield from texts_of(part, seen)
    elif type(thing).__module__.startswith("services.governor"):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {*slots, *getattr(thing, "__dict__", {}), *getattr(thing, "__struct_fields__", ())}:
            if not name.startswith("__"):
                yield from texts_of(getattr(thing, name, None), seen)


def reached_bytes(*things: Any) -> int:
    seen: set[int] = set()
    found = (text for thing in things for text in texts_of(thing, seen))
    return sum(len(text.encode() if isinstance(text, str) else text) for text in found)


def test_the_walk_finds_what_a_conversation_keeps() -> None:
    peer = Rig().connect()
    peer.send(upload(DATA, job="J" * 200)[0], b"half a line")
    texts = [sent for sent in manifest(DATA).values() if isinstance(sent, str)]
    assert reached_bytes(peer.session) == 200 + len(b"half a line") + sum(map(len, texts))


NAMES = st.one_of(
    st.sampled_from(["J", "J_a", "ü" * 100, "x" * MAX_NAME_BYTES, "x" * (MAX_NAME_BYTES + 1), "\U0001f30a" * 64]),
    st.text(min_size=1, max_size=80, alphabet=st.characters(exclude_categories=["Cs"])),
)
DATAS = st.sampled_from([b"", b"x", DATA, b"x" * 200])


def _upload(name: str, data: bytes, changed: dict[str, Any], auth: str, chunks: int) -> bytes:
    sent = frame(verb="share", job=name, seq=1, payload_manifest=manifest(data, **changed), auth=auth)
    pieces = [data[at : at + 8] for at in range(0, len(data), 8)] or [b""]
    more = [
        frame(verb="share", job=name, seq=2, payload_chunk=chunk(piece, index), auth=auth)
        for index, piece in enumerate(pieces[: chunks or None])
    ]
    return b"".join([sent, *more])


LINES = st.one_of(
    st.builds(ping, st.integers(1, 9), NAMES),
    st.builds(
        _upload, NAMES, DATAS,
        st.dictionaries(st.sampled_from(["payload_id", "content_type", "sha256", "cipher"]), NAMES, max_size=2),
        st.one_of(st.just(""), NAMES, st.just("k" * 3000)), st.integers(0, 3),
    ),
    st.binary(max_size=300),
    st.sampled_from([b"\n", b"[\n", b"x\n" * 500]),
)  # fmt: skip
STEPS = st.tuples(st.integers(0, 1), st.sampled_from(["say", "say", "say", "end", "stop", "go on", "half"]), LINES)


def _step(peer: Peer, what: str, sent: bytes, ended: Ended) -> None:
    if what == "end" and peer.work is not None:
        peer.finish(ended)
    elif what == "stop":
        peer.session.stop(len(sent))
    elif what == "go on":
        peer.deferred(peer.session.go_on(peer.rig.now))
    elif what == "half":
        peer.hang_up_half()
    else:
        peer.send(sent)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=25), st.sampled_from(list(Ended)), st.sampled_from([600, 3_000, 100_000]))
def test_after_any_frames_the_gate_holds_at_least_what_can_be_reached(
    steps: list[tuple[int, str, bytes]], ended: Ended, total_bytes: int
) -> None:
    rig = Rig(cap=1, line_bytes=5000, jobs=5, connection_bytes=total_bytes, total_bytes=total_bytes)
    peers = [rig.connect() for _ in range(2)]
    for number, what, sent in steps:
        _step(peers[number], what, sent, ended)
        reached = [reached_bytes(peer.session, peer.work) for peer in peers]
        assert sum(reached) <= rig.gate.held_bytes <= total_bytes
    for peer in peers:
        peer.session.lost()
        if peer.work is not None:
            peer.finish(Ended.CANCELLED)
    assert (rig.gate.held_bytes, rig.gate.waiting, rig.gate.status.inflight) == (0, 0, 0)


@pytest.mark.parametrize(
    "sent",
    [
        frame(verb="ping", job="x" * (MAX_NAME_BYTES + 1), seq=4),
        frame(verb="ping", job="ü" * (MAX_NAME_BYTES // 2 + 1), seq=4),
        *(
            frame(verb="share", job="J", seq=4, payload_manifest=manifest(DATA, **{field: "x" * 257}))
            for field in ("payload_id", "content_type", "content_encoding", "cipher", "sha256")
        ),
        frame(verb="ping", job="J", seq=4, auth="k" * (MAX_AUTH_BYTES + 1)),
    ],
)
def test_a_name_that_is_too_long_spoils_the_envelope_and_is_not_kept(sent: bytes) -> None:
    peer = Rig().connect()
    reply = peer.one(sent)
    assert short(reply) == ("clarify", "need", "envelope_invalid", "bad_envelope", 5)
    assert len(reply["job"]) <= MAX_NAME_BYTES
    assert (peer.rig.gate.held_bytes, peer.closed) == (0, False)


def test_names_may_be_as_long_as_the_bound() -> None:
    peer = Rig().connect()
    lines = upload(DATA, job="x" * MAX_NAME_BYTES)
    assert [reply["status"] for reply in peer.send(*lines)] == ["ok", "ok"]
    assert peer.work is not None


def test_a_job_that_finds_no_room_for_its_name_is_told_to_come_back() -> None:
    rig = Rig(line_bytes=1000, connection_bytes=2000, total_bytes=2000)
    full, late = rig.connect(), rig.connect()
    full.send(b"x" * 990)
    full.send(ping(job="y" * 250))
    rig.gate.reserve(2000 - rig.gate.held_bytes, 0)
    reply = late.one(upload(DATA)[0])
    assert (reply["status"], reply["need_code"], late.closed) == ("yield", "server_busy", False)
    assert rig.gate.held_bytes == 2000


def test_a_flood_of_short_lines_is_answered_in_slices() -> None:
    session = GovernorSession(Gate(cap=1, bounds=GovernorLimits(), random=lambda: 0.0), 0.0)
    actions, replies, turns = session.receive(b"x\n" * 5_000, 0.0), 0, 0
    while True:
        assert len(actions.out) < MAX_OUT_BYTES + 1000
        replies, turns = replies + actions.out.count(b"\n"), turns + 1
        if not actions.more:
            break
        actions = session.go_on(0.0)
    assert replies == 5_000
    assert turns > 10


def test_the_replies_that_are_not_read_are_held_and_no_more_are_made() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0), limits=ServerLimits(write_s=600.0)) as stand:
            line = await stand.connect()
            line.writer.write(b"x\n" * 200_000)  # whose replies are 80 MB
            await until(lambda: any(connection._stalled for connection in stand.server.connections))
            (connection,) = stand.server.connections
            assert connection._transport is not None
            unread = connection._transport.get_write_buffer_size()
            assert 0 < unread <= stand.gate.held_bytes - len(connection._session._buffer)
            assert not connection._reading
            assert unread <= MAX_OUT_BYTES + 1000
            line.writer.transport.abort()
            await until(lambda: not stand.server.connections)
            assert stand.gate.held_bytes == 0

    run(main())


def test_unread_replies_are_held_until_they_are_read_and_no_longer() -> None:
    rig = Rig(line_bytes=1000, connection_bytes=2000, total_bytes=2000)
    peer = rig.connect()
    assert peer.session.stop(1500)
    assert peer.session.stop(1800), "the replies of a job that ends meanwhile come behind them"
    assert rig.gate.held_bytes == 1800
    assert not peer.session.stop(2001)
    assert rig.gate.held_bytes == 1800
    peer.deferred(peer.session.go_on(rig.now))
    assert rig.gate.held_bytes == 0


def test_a_client_whose_unread_replies_find_no_room_is_cut_off() -> None:
    async def main() -> None:
        bounds = {"line_bytes": 1024, "connection_bytes": 70_000, "total_bytes": 70_000}
        async with governor(StubBackend(0.0), limits=ServerLimits(write_s=600.0), **bounds) as stand:
            line = await stand.connect()
            stand.gate.reserve(40_000, 0)
            line.writer.write(b"x\n" * 30_000)
            await until(lambda: not stand.server.connections)
            assert stand.gate.held_bytes == 40_000

    run(main())


def test_a_governor_that_will_leave_says_that_no_job_is_welcome_and_still_takes_one() -> None:
    peer = Rig(cap=2).connect()
    peer.rig.gate.leaving = True
    assert peer.one(ping())["receipts"][0] == {"kind": "server.health", "value_u64": 0}
    peer.send(*upload(DATA))
    assert peer.work is not None
    assert json.loads(bytes(peer.session.keepalive()))["status"] == "ok"
