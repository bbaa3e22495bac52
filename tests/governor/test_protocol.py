"""What a connection keeps and lets go of: lines, jobs, bytes, slots, times; and nothing a peer sends changes that."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.governor.gate import LATEST_S, Gate
from services.governor.job import Ended, Result
from services.governor.protocol import GovernorSession
from tests.governor.talk import Rig, chunk, frame, kinds, manifest, ping, receipt, short, upload

DATA = b"hello world!"
LIMIT = 512
TEXT_BYTES = sum(len(sent) for sent in manifest(DATA).values() if isinstance(sent, str)) + 64  # of a chunk's digest


def padded(length: int) -> bytes:
    """A ping of just that many bytes."""
    head, tail = b'{"v":0,"verb":"ping","job":"J","seq":4,"x":"', b'"}'
    return head + b"x" * (length - len(head) - len(tail)) + tail


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_line_may_be_as_long_as_the_limit_without_its_end(more: int, end: bytes) -> None:
    peer = Rig(line_bytes=LIMIT).connect()
    (reply,) = peer.send(padded(LIMIT + more) + end)
    if more <= 0:
        assert (reply["status"], peer.closed) == ("ok", False)
    else:
        assert short(reply) == ("confirm", "abort", "line_too_large", "bad_frame", 1)
        assert (kinds(reply), receipt(reply, "conn.outcome")) == (["conn.outcome", "conn.outcome_reason"], 2)
        assert peer.closed


def test_a_line_without_an_end_is_refused_as_soon_as_it_is_too_long() -> None:
    peer = Rig(line_bytes=LIMIT).connect()
    assert peer.send(padded(LIMIT)) == []
    assert peer.send(b"\r") == []  # may be the beginning of its end
    assert peer.send(b"x")[0]["need_code"] == "line_too_large"
    assert peer.closed


def test_spaces_count_and_blank_lines_are_not_answered() -> None:
    peer = Rig(line_bytes=LIMIT).connect()
    assert peer.send(b"\n", b"  \r\n", b"\xc2\xa0\n") == []
    assert peer.send(b" " * (LIMIT + 1) + b"\n")[0]["need_code"] == "line_too_large"


def test_after_too_long_a_line_nothing_is_heard() -> None:
    peer = Rig(line_bytes=LIMIT).connect()
    replies = peer.send(ping(), b"x" * (LIMIT + 1) + b"\n", ping(), ping())
    assert [reply.get("need_code") for reply in replies] == [None, "line_too_large"]
    assert peer.send(ping()) == []


@given(st.data())
def test_how_the_bytes_are_cut_makes_no_difference(data: st.DataObject) -> None:
    lines = [
        ping(3),
        b"\r\n",
        *upload(DATA, job="A"),
        b"GET / \n",
        *upload(b"abc", job="B"),
        padded(LIMIT - 1) + b"\n",
        b"[\n",
    ]
    sent = b"".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))

    def heard(pieces: list[bytes]) -> list[Any]:
        peer = Rig(cap=4, line_bytes=LIMIT).connect()
        found = []
        for piece in pieces:
            found += peer.send(piece)
            while peer.work is not None:
                found += peer.finish()
        return found

    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert heard(pieces) == heard([sent])


def test_jobs_may_be_interleaved_and_one_connection_holds_one_slot() -> None:
    peer = Rig(cap=4).connect()
    one, other = upload(DATA, job="A"), upload(b"abcdefghij", job="B")
    replies = [peer.one(line) for pair in zip(one[:-1], other[:-1], strict=True) for line in pair]
    assert {reply["status"] for reply in replies} == {"ok"}
    assert peer.send(one[-1], other[-1], ping()) == []  # the first runs, and the rest waits
    assert (bytes(peer.work.payload), peer.rig.gate.status.inflight) == (DATA, 1)
    assert [reply["status"] for reply in peer.finish()] == ["done"]
    assert bytes(peer.work.payload) == b"abcdefghij"
    assert [reply["status"] for reply in peer.finish()] == ["done", "ok"]
    assert peer.rig.gate.held_bytes == len("J_ping"), "the name in the last frame"


def test_a_manifest_in_the_middle_of_an_upload_begins_it_again() -> None:
    peer = Rig().connect()
    peer.send(*upload(b"something else entirely")[:-1])
    held = peer.rig.gate.held_bytes
    peer.send(*upload(DATA))
    assert bytes(peer.work.payload) == DATA
    assert peer.rig.gate.held_bytes < held


def test_sixty_four_jobs_may_be_open_and_one_more_ends_the_connection() -> None:
    peer = Rig().connect()
    for number in range(64):
        assert peer.one(upload(DATA, job=f"J_{number}")[0])["status"] == "ok"
    assert peer.one(upload(DATA, job="J_7")[0])["status"] == "ok"
    reply = peer.one(upload(DATA, job="J_64", seq=9)[0])
    assert short(reply) == ("confirm", "abort", "too_many_jobs", "quota", 10)
    assert (receipt(reply, "conn.outcome_reason"), peer.closed) == (5, True)


@pytest.mark.parametrize("resent", [1, 5])
def test_the_last_chunk_again_after_a_yield_is_a_new_attempt(resent: int) -> None:
    rig = Rig()
    waiting, busy = rig.connect(), rig.connect()
    waiting.send(*upload(DATA)[:-1])
    busy.send(*upload(DATA))
    for number in range(resent):
        assert waiting.one(upload(DATA, seq=number + 1)[-1])["status"] == "yield"
        assert rig.gate.waiting == 1
    busy.finish()
    assert waiting.send(upload(DATA)[-1]) == []
    assert bytes(waiting.work.payload) == DATA
    assert [reply["status"] for reply in waiting.finish()] == ["done"]
    assert (rig.gate.waiting, rig.gate.yielded_total) == (0, resent)


def test_after_a_yield_another_chunk_is_not_the_last_one_again() -> None:
    rig = Rig()
    waiting = rig.connect()
    waiting.send(*upload(DATA)[:-1])
    rig.connect().send(*upload(DATA))
    waiting.one(upload(DATA)[-1])
    for data, index in ((b"xxxx", 1), (b"", 2), (DATA[:8], 0)):
        reply = waiting.one(frame(verb="share", job="J_a", seq=4, payload_chunk=chunk(data, index)))
        assert reply["need_code"] == "chunk_expected_index"


def test_a_manifest_is_told_to_come_back_while_no_slot_is_free() -> None:
    rig = Rig()
    busy, late = rig.connect(), rig.connect()
    busy.send(*upload(DATA))
    reply = late.one(upload(DATA)[0])
    assert short(reply) == ("clarify", "yield", "server_busy", "busy", 2)
    names = 4 * len("J_a")  # of a job and of a last frame, for two
    assert (rig.gate.held_bytes, reply["retry_hint_ms"]) == (len(DATA) + TEXT_BYTES + names, 500)
    assert late.one(upload(DATA)[1])["need_code"] == "manifest_missing"
    busy.finish()
    late.send(*upload(DATA))
    assert late.work is not None


def test_the_hint_is_the_time_a_job_takes_times_those_who_wait_over_the_slots() -> None:
    rig = Rig(cap=2)
    first = rig.connect()
    first.send(*upload(DATA))
    first.finish(seconds=0.4)
    for _ in range(2):
        rig.connect().send(*upload(DATA))
    hints = [rig.connect().one(upload(DATA)[0])["retry_hint_ms"] for _ in range(4)]
    assert hints == [200, 400, 600, 800]


def test_hints_that_are_cut_are_spread_out_so_that_the_slot_is_not_idle_between_rounds() -> None:
    hints = [hint_after(mean_s=1.0, waiting=20, chance=chance) for chance in (0.0, 0.5, 0.99)]
    assert hints == [5000, 3750, 2525]


def test_whoever_has_very_long_to_wait_saves_its_tries() -> None:
    assert hint_after(mean_s=10.0, waiting=20, chance=0.99) == 4010


def test_no_spread_brings_a_client_back_before_the_backend_wants_it() -> None:
    assert hint_after(mean_s=1.0, waiting=20, chance=0.99, min_s=4.0) == 4000


def hint_after(*, mean_s: float, waiting: int, chance: float, min_s: float = 0.0) -> int:
    rig = Rig(random=chance)
    rig.gate.mean_s, rig.gate.waiting = mean_s, waiting
    hint_ms: int = rig.gate.hint_ms(min_s)
    return hint_ms


def test_whoever_leaves_is_no_longer_waited_for() -> None:
    rig = Rig()
    rig.connect().send(*upload(DATA))
    crowd = [rig.connect() for _ in range(10)]
    for peer in crowd:
        peer.one(upload(DATA)[0])
    assert rig.gate.waiting == 10
    for peer in crowd:
        peer.session.lost()
    assert rig.gate.waiting == 0


@given(st.floats(0, 1e6), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True), st.floats(0, 1e9))
def test_a_hint_is_never_sooner_nor_later_than_it_may_be(
    mean_s: float, waiting: int, chance: float, min_s: float
) -> None:
    rig = Rig(random=chance)
    rig.gate.mean_s, rig.gate.waiting = mean_s, waiting
    assert 50 <= rig.gate.hint_ms(min_s) <= LATEST_S * 1000


def test_what_a_connection_may_reserve_is_bounded_and_so_is_what_all_may() -> None:
    names = len("A") + len("A")  # of the job, and of the last frame
    more = TEXT_BYTES + names
    rig = Rig(cap=64, connection_bytes=80 + 30 + 2 * TEXT_BYTES + names, total_bytes=150 + 2 * more + len("B"))
    one, other = rig.connect(), rig.connect()
    assert one.one(upload(b"x" * 80, job="A")[0])["status"] == "ok"
    assert one.one(upload(b"x" * 30, job="B")[0])["status"] == "yield"
    assert other.one(upload(b"x" * 80, job="A")[0])["status"] == "yield"
    assert other.one(upload(b"x" * 70, job="A")[0])["status"] == "ok"
    assert rig.gate.held_bytes == 150 + 2 * more + len("B")
    one.session.lost()
    assert rig.gate.held_bytes == 70 + more


def test_half_lines_are_held_bytes_too() -> None:
    rig = Rig(line_bytes=1000, connection_bytes=10_000, total_bytes=1500)
    one, other = rig.connect(), rig.connect()
    assert one.send(b"x" * 900) == []
    assert rig.gate.held_bytes == 900
    assert other.send(b"x" * 900)[0]["need_code"] == "too_many_bytes"
    assert other.closed
    assert one.send(b"\n")[0]["need_code"] == "not_json"
    assert rig.gate.held_bytes == 0


def test_a_deadline_counts_from_the_manifest_and_a_later_one_does_not_extend_it() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.one(upload(DATA, ttl_ms=1000)[0])
    rig.now += 0.9
    peer.one(frame(verb="share", job="J_a", seq=2, ttl_ms=5000, payload_chunk=chunk(DATA[:8], 0)))
    rig.now += 0.1
    reply = peer.one(frame(verb="share", job="J_a", seq=3, ttl_ms=5000, payload_chunk=chunk(DATA[8:], 1)))
    assert short(reply) == ("confirm", "abort", "deadline", "deadline", 4)
    assert (rig.gate.held_bytes, peer.closed) == (len("J_a"), False), "the name in the last frame"
    assert peer.send(*upload(DATA))[-1]["status"] == "ok"


def test_a_deadline_goes_with_the_work() -> None:
    peer = Rig().connect()
    peer.send(*upload(DATA, ttl_ms=1500))
    assert peer.work.deadline == pytest.approx(101.5)
    (late,) = peer.finish(Ended.LATE)
    assert (short(late), kinds(late)) == (
        ("confirm", "abort", "deadline", "deadline", 5),
        ["conn.outcome", "conn.outcome_reason"],
    )


def test_idleness_ends_half_a_line_as_it_ends_nothing_and_a_byte_now_and_then_does_not_help() -> None:
    rig = Rig(idle_s=60.0)
    peer = rig.connect()
    peer.one(ping(5))
    for _ in range(59):
        rig.now += 1.0
        assert peer.send(b"{") == []
        assert peer.deferred(peer.session.idled(rig.now)) == []
    rig.now += 1.0
    (reply,) = peer.deferred(peer.session.idled(rig.now))
    assert short(reply) == ("confirm", "abort", "idle_timeout", "timeout", 6)
    assert (receipt(reply, "conn.outcome"), receipt(reply, "conn.outcome_reason"), peer.closed) == (4, 9, True)


def test_a_line_now_and_then_is_not_idleness() -> None:
    rig = Rig(idle_s=60.0)
    peer = rig.connect()
    for _ in range(10):
        rig.now += 59.0
        assert peer.deferred(peer.session.idled(rig.now)) == []
        assert peer.one(ping())["status"] == "ok"


def test_a_running_job_is_not_idleness() -> None:
    rig = Rig(idle_s=60.0)
    peer = rig.connect()
    peer.send(*upload(DATA))
    rig.now += 1000.0
    assert peer.deferred(peer.session.idled(rig.now)) == []
    peer.finish()
    assert peer.session.idle_at == rig.now + 60.0


def test_a_peer_that_leaves_is_told_so_unless_something_was_settled() -> None:
    silent = Rig().connect()
    (gone,) = silent.hang_up_half()
    assert short(gone) == ("confirm", "abort", "peer_gone", "conn_closed", 1)
    assert (receipt(gone, "conn.outcome"), receipt(gone, "conn.outcome_reason"), silent.closed) == (5, 7, True)
    served = Rig().connect()
    served.send(*upload(DATA))
    served.finish()
    assert (served.hang_up_half(), served.closed) == ([], True)


def test_who_is_not_known_may_ask_how_things_stand_and_no_more() -> None:
    peer = Rig(tokens=frozenset({"sesame"})).connect()
    assert peer.one(ping())["status"] == "ok"
    for auth in ({}, {"auth": "simsim"}, {"auth": 7}):
        reply = peer.one(frame(verb="share", job="J", seq=4, payload_manifest=manifest(DATA), **auth))
        assert short(reply) == ("clarify", "need", "auth_required", "auth", 5)
    assert (
        peer.one(frame(verb="share", job="J", seq=4, payload_manifest=manifest(DATA), auth="sesame"))["status"] == "ok"
    )


def test_what_waits_for_a_job_to_end_is_bounded() -> None:
    peer = Rig().connect()
    peer.send(*upload(DATA))
    while not peer.session.full:
        assert peer.send(ping() * 100) == []
    assert peer.session.running


def test_whoever_does_not_read_is_not_served_on() -> None:
    peer = Rig().connect()
    assert peer.session.stop(0)
    assert (peer.send(ping(), *upload(DATA)), peer.work) == ([], None)
    assert [reply["status"] for reply in peer.deferred(peer.session.go_on(100.0))] == ["ok"] * 3
    assert peer.work is not None


ODD = st.one_of(st.none(), st.text(max_size=5), st.integers())
PIECES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([ping(2**64 - 1), b"\n", b"{", b"null\n", b"GET / HTTP/1.1\r\n"]),
    st.sampled_from([*upload(DATA), *upload(b"", job="J_e")]),
    st.builds(
        lambda changed, data, index: frame(
            verb="share", job="J_a", seq=1, payload_chunk={**chunk(data, index), **changed}
        ),
        st.dictionaries(st.sampled_from(["sha256", "bytes_b64", "index"]), ODD),
        st.binary(max_size=12),
        st.integers(0, 3),
    ),
    st.builds(
        lambda changed: frame(verb="share", job="J_a", seq=1, payload_manifest=manifest(DATA, **changed)),
        st.dictionaries(
            st.sampled_from(["total_bytes", "chunks", "sha256", "cipher", "payload_id"]),
            st.one_of(st.none(), st.text(max_size=5), st.integers(0, 2**64 - 1)),
        ),
    ),
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 2), PIECES, st.sampled_from(list(Ended))), max_size=40), st.randoms())
def test_whatever_peers_send_slots_and_bytes_stay_within_bounds_and_come_back(
    script: list[tuple[int, bytes, Ended]], chance: random.Random
) -> None:
    rig = Rig(cap=2, line_bytes=400, jobs=3, connection_bytes=700, total_bytes=1000)
    peers = [rig.connect() for _ in range(3)]
    for number, sent, ended in script:
        peer = peers[number]
        for reply in peer.send(sent):
            assert list(reply)[:6] == ["v", "verb", "job", "seq", "ttl_ms", "status"]
            kinds(reply)
        assert 0 <= rig.gate.status.inflight <= 2
        assert 0 <= rig.gate.held_bytes <= 1000
        if peer.work is not None and chance.random() < 0.5:
            peer.finish(ended)
    for peer in peers:
        peer.hang_up_half()
        while peer.work is not None:
            peer.finish()
        peer.session.lost()
    assert (rig.gate.status.inflight, rig.gate.held_bytes, rig.gate.waiting) == (0, 0, 0)


def test_a_job_that_ends_after_its_connection_changes_nothing() -> None:
    rig = Rig()
    peer = rig.connect()
    peer.send(*upload(DATA))
    assert peer.work is not None
    peer.session.lost()
    assert rig.gate.status.inflight == 1  # whoever runs it gives the place back, once
    peer.work.slot.release_slot()
    peer.work.slot.release_slot(1.0)
    assert bytes(peer.session.ended(Result(Ended.CANCELLED), 0.0).out) == b""
    assert (rig.gate.status.inflight, rig.gate.held_bytes) == (0, 0)


def test_an_end_without_a_job_is_a_bug_that_shows() -> None:
    rig = Rig()
    gate: Gate = rig.gate
    with pytest.raises(RuntimeError, match="not running"):
        GovernorSession(gate, 0.0).ended(Result(Ended.DONE), 0.0)
