"""Every reply there is, as a table: what is said, how far `seq` goes, which receipts follow the six, who stays.

Then the conversations that the specification writes down, word by word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.governor import reply
from services.governor.job import Ended
from tests.governor.talk import BASE, Peer, Rig, chunk, frame, kinds, manifest, ping, receipt, short, upload

DATA = b"hello world!"
SEEN = ping(seq=7, job="J_p")
MS, OUTCOME, REASON, HINT = "cdr.backend.ms", "conn.outcome", "conn.outcome_reason", "conn.retry_hint_ms"
Replies = list[dict[str, Any]]


def share(**payload: Any) -> bytes:
    return frame(verb="share", job="J", seq=4, **payload)


def saturated(peer: Peer, last: bytes) -> Replies:
    peer.send(*upload(DATA, job="J")[:-1])
    peer.rig.connect().send(*upload(DATA))
    return peer.send(last)


def ran(peer: Peer, ended: Ended) -> Replies:
    peer.send(*upload(DATA, job="J", seq=2))  # its last chunk is seq 4
    return peer.finish(ended)


def idle(peer: Peer) -> Replies:
    peer.send(SEEN)
    peer.rig.now += 60
    return peer.deferred(peer.session.idled(peer.rig.now))


def late(peer: Peer) -> Replies:
    peer.send(*upload(DATA, job="J", ttl_ms=5)[:-1])
    peer.rig.now += 1
    return peer.send(share(payload_chunk=chunk(DATA[8:], 1)))


def many_jobs(peer: Peer) -> Replies:
    for number in range(64):
        peer.send(upload(DATA, job=f"J_{number}")[0])
    return peer.send(share(payload_manifest=manifest(DATA)))


def gone(peer: Peer) -> Replies:
    peer.send(SEEN)
    return peer.hang_up_half()


def begun(peer: Peer, last: bytes) -> Replies:
    peer.send(upload(DATA, job="J")[0])
    return peer.send(last)


GOOD = share(payload_chunk=chunk(DATA[:8], 0))
LAST = share(payload_chunk=chunk(DATA[8:], 1))
BAD = share(payload_chunk=chunk(DATA[:8], 5))

# event: how it comes about, verb, status, need, error, seq of the reply, receipts with outcome and reason, and the end
ROWS: dict[str, tuple[Callable[[Peer], Replies], tuple[str, str, str, str, int], list[str], int, int, bool]] = {
    "ping": (lambda p: p.send(ping(4)), ("confirm", "ok", "", "", 5), [], 0, 0, False),
    "manifest ok": (
        lambda p: p.send(share(payload_manifest=manifest(DATA))), ("clarify", "ok", "", "", 5), [], 0, 0, False,
    ),
    "chunk ok": (lambda p: begun(p, GOOD), ("clarify", "ok", "", "", 5), [], 0, 0, False),
    "manifest bad": (
        lambda p: p.send(share(payload_manifest={})),
        ("clarify", "need", "manifest_invalid", "need_manifest_fix", 5), [REASON], 0, 3, False,
    ),
    "chunk bad": (
        lambda p: begun(p, BAD), ("clarify", "need", "chunk_expected_index", "need_more", 5), [], 0, 0, False,
    ),
    "saturated": (
        lambda p: saturated(p, LAST),
        ("clarify", "yield", "server_busy", "busy", 6), [OUTCOME, REASON, HINT], 3, 1, False,
    ),
    "saturated, at the manifest": (
        lambda p: saturated(p, share(payload_manifest=manifest(DATA))),
        ("clarify", "yield", "server_busy", "busy", 5), [OUTCOME, REASON, HINT], 3, 1, False,
    ),
    "finished": (lambda p: ran(p, Ended.DONE), ("confirm", "done", "", "", 6), [MS, OUTCOME], 1, 0, False),
    "backend error": (
        lambda p: ran(p, Ended.FAILED),
        ("confirm", "abort", "backend_error", "backend_error", 6), [MS, OUTCOME, REASON], 2, 8, False,
    ),
    "not a frame": (
        lambda p: p.send(SEEN, b"?\n")[1:], ("clarify", "need", "not_json", "bad_frame", 8), [REASON], 0, 2, False,
    ),
    "envelope": (
        lambda p: p.send(frame(verb="x", job="J", seq=4)),
        ("clarify", "need", "envelope_invalid", "bad_envelope", 5), [REASON], 0, 2, False,
    ),
    "a server's verb": (
        lambda p: p.send(frame(verb="confirm", job="J", seq=4, status="ok")),
        ("clarify", "need", "missing_payload", "need_manifest_or_chunk", 5), [REASON], 0, 2, False,
    ),
    "line too long": (
        lambda p: p.send(SEEN, b"x" * 300_039)[1:],
        ("confirm", "abort", "line_too_large", "bad_frame", 8), [OUTCOME, REASON], 2, 2, True,
    ),
    "one job too many": (
        many_jobs, ("confirm", "abort", "too_many_jobs", "quota", 5), [OUTCOME, REASON], 2, 5, True,
    ),
    "idle": (idle, ("confirm", "abort", "idle_timeout", "timeout", 8), [OUTCOME, REASON], 4, 9, True),
    "gone": (gone, ("confirm", "abort", "peer_gone", "conn_closed", 8), [OUTCOME, REASON], 5, 7, True),
    "too late to run": (late, ("confirm", "abort", "deadline", "deadline", 5), [OUTCOME, REASON], 2, 10, False),
    "too late while it ran": (
        lambda p: ran(p, Ended.LATE), ("confirm", "abort", "deadline", "deadline", 6), [OUTCOME, REASON], 2, 10, False,
    ),
    "draining": (
        lambda p: [*p.send(SEEN)[1:], *p.deferred(p.session.drain())],
        ("confirm", "abort", "server_draining", "draining", 8), [OUTCOME], 2, 0, True,
    ),
    "one connection too many": (
        lambda p: p.deferred(p.session.refuse()),
        ("confirm", "abort", "too_many_connections", "quota", 1), [OUTCOME, REASON], 2, 5, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("event", ROWS)
def test_each_event_has_its_reply_its_receipts_and_its_end(event: str) -> None:
    provoke, sent, receipts, outcome, reason, closed = ROWS[event]
    peer = Rig().connect()
    (deferred,) = provoke(peer)
    assert short(deferred) == sent
    assert kinds(deferred) == receipts
    values = {kept["kind"]: kept["value_u64"] for kept in deferred["receipts"]}
    assert (values.get(OUTCOME, 0), values.get(REASON, 0), peer.closed) == (outcome, reason, closed)
    assert all(type(value) is int and value >= 0 for value in values.values())
    assert list(deferred) == [key for key in ORDER if key in deferred]


ORDER = [
    "v", "verb", "job", "seq", "ttl_ms", "status", "need_code", "retry_hint_ms", "error_code", "receipts", "result",
]  # fmt: skip


def test_the_table_has_every_reply_that_there_is() -> None:
    sent = {
        (kind.verb, kind.status, kind.need) for kind in vars(reply).values() if isinstance(kind, reply.ReplyTemplate)
    }
    assert sent - {("clarify", "need", "auth_required"), ("confirm", "abort", "too_many_bytes")} <= {
        row[1][:3] for row in ROWS.values()
    }


@pytest.mark.parametrize("status", ["yield", "done", "abort"])
def test_whoever_was_told_how_it_ended_is_not_told_that_it_has_gone(status: str) -> None:
    peer = Rig().connect()
    if status == "yield":
        saturated(peer, LAST)
    else:
        ran(peer, Ended.DONE if status == "done" else Ended.FAILED)
    assert (peer.hang_up_half(), peer.closed) == ([], True)


@pytest.mark.parametrize("fields", [{"receipts": []}, {"payload_manifest": None}, {"status": ""}, {"retry_hint_ms": 0}])
def test_nothing_said_is_as_good_as_not_said(fields: dict[str, Any]) -> None:
    assert Rig().connect().one(frame(verb="ping", job="J", seq=1, **fields))["status"] == "ok"


@pytest.mark.parametrize("fields", [{"job": ""}, {"seq": 0}, {"verb": ""}, {"v": -1}, {"v": 2**63 - 1}])
def test_what_is_empty_is_no_envelope(fields: dict[str, Any]) -> None:
    deferred = Rig().connect().one(frame(**{"verb": "ping", "job": "J", "seq": 4, **fields}))
    assert (deferred["need_code"], deferred["job"], deferred["seq"]) == (
        "envelope_invalid", fields.get("job", "J") or "J_?", fields.get("seq", 4) + 1,
    )  # fmt: skip


def test_seq_goes_round_where_two_frames_are_due() -> None:
    peer = Rig().connect()
    peer.send(upload(b"x", job="J")[0])
    peer.send(frame(verb="share", job="J", seq=2**64 - 1, payload_chunk=chunk(b"x", 0)))
    assert peer.finish()[0]["seq"] == 1


def status(deferred: dict[str, Any]) -> list[int]:
    return [receipt(deferred, kind) for kind in BASE]


def test_the_conversations_of_the_specification() -> None:
    """But for two deliberate differences: a slot is free again in `done`, and a resent last chunk is a new attempt."""
    rig = Rig()
    idle_one, a, b = rig.connect(), rig.connect(), rig.connect()
    assert status(idle_one.one(ping())) == [1, 0, 1, 0, 0, 0]
    b.send(*upload(b"x", job="J_b")[:1])
    sent = upload(DATA, job="J_a")
    deferred = a.one(sent[0])
    assert (short(deferred), status(deferred)) == (("clarify", "ok", "", "", 2), [1, 0, 1, 0, 0, 0])
    deferred = a.one(sent[1])
    assert (short(deferred), status(deferred)) == (("clarify", "ok", "", "", 3), [1, 0, 1, 0, 0, 8])
    assert a.send(sent[2]) == []
    assert status(idle_one.one(ping(seq=7))) == [0, 1, 1, 1, 0, 0]
    deferred = b.one(upload(b"x", job="J_b")[1])
    assert (short(deferred), status(deferred)) == (("clarify", "yield", "server_busy", "busy", 4), [0, 1, 1, 1, 1, 1])
    (deferred,) = a.finish(seconds=2.0)
    assert (short(deferred), status(deferred)) == (("confirm", "done", "", "", 5), [1, 0, 1, 1, 1, 12])
    assert [receipt(deferred, MS), receipt(deferred, OUTCOME)] == [2000, 1]
    assert b.send(frame(verb="share", job="J_b", seq=3, payload_chunk=chunk(b"x", 0))) == []
    assert short(b.finish()[0]) == ("confirm", "done", "", "", 5)
