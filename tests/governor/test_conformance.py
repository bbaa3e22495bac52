"""The wire, case by case: what stands on a line, and what it is answered. The table is the specification.

Each case is one line after a valid ping of job J_p, seq 7, ttl 3 unless it says otherwise, and gives verb, status,
need_code, error_code, seq, job, ttl and the kinds of the receipts after the six that every reply has.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from services.governor.job import Ended
from tests.governor.talk import Rig, chunk, frame, kinds, manifest, ping, receipt, short, upload

OK_PING = ("confirm", "ok", "", "")
OK = ("clarify", "ok", "", "")
MALFORMED = ("clarify", "need", "json_malformed", "bad_frame")
ENVELOPE = ("clarify", "need", "envelope_invalid", "bad_envelope")
REASON = ["conn.outcome_reason"]
ENDED = ["conn.outcome", "conn.outcome_reason"]
YIELDED = ["conn.outcome", "conn.outcome_reason", "conn.retry_hint_ms"]


def bad(need: str) -> tuple[str, str, str, str]:
    return ("clarify", "need", need, "bad_frame")


def more(need: str) -> tuple[str, str, str, str]:
    return ("clarify", "need", need, "need_more")


P = b'{"v":0,"verb":"ping","job":"J","seq":4,"ttl_ms":9'
DEEP = 200

# name: line, what is said, seq, job, ttl
READING: dict[str, tuple[bytes, tuple[str, str, str, str], int, str, int]] = {
    "a plain ping": (P + b"}", OK_PING, 5, "J", 9),
    "keys in other letter case": (b'{"V":0,"VERB":"ping","Job":"J","sEq":4,"TTL_ms":9}', OK_PING, 5, "J", 9),
    "a key with the Kelvin sign and the long s": (
        '{"v":0,"verb":"ping","job":"J","\u017feq":4}'.encode(), OK_PING, 5, "J", 0,
    ),
    "of equal keys the last": (P + b',"job":"K","seq":6}', OK_PING, 7, "K", 9),
    "unknown keys": (P + b',"x":[{"y":1e99}],"z":"\\u0000"}', OK_PING, 5, "J", 9),
    "null is as good as absent": (P + b',"ttl_ms":null,"status":null,"payload_chunk":null}', OK_PING, 5, "J", 9),
    "null for the version": (b'{"v":null,"verb":"ping","job":"J","seq":4}', OK_PING, 5, "J", 0),
    "no version": (b'{"verb":"ping","job":"J","seq":4}', OK_PING, 5, "J", 0),
    "minus zero for the version": (b'{"v":-0,"verb":"ping","job":"J","seq":4}', OK_PING, 5, "J", 0),
    "a line null": (b"null", ENVELOPE, 1, "J_?", 0),
    "seq as text": (b'{"v":0,"verb":"ping","job":"J","seq":"1"}', MALFORMED, 8, "J_p", 3),
    "job as a number": (b'{"v":0,"verb":"ping","job":7,"seq":1}', MALFORMED, 8, "J_p", 3),
    "a version with a point": (b'{"v":0.0,"verb":"ping","job":"J","seq":1}', MALFORMED, 8, "J_p", 3),
    "seq with a point": (b'{"v":0,"verb":"ping","job":"J","seq":1.0}', MALFORMED, 8, "J_p", 3),
    "seq with an exponent": (b'{"v":0,"verb":"ping","job":"J","seq":1e2}', MALFORMED, 8, "J_p", 3),
    "a negative seq": (b'{"v":0,"verb":"ping","job":"J","seq":-1}', MALFORMED, 8, "J_p", 3),
    "seq of 2^64": (b'{"v":0,"verb":"ping","job":"J","seq":18446744073709551616}', MALFORMED, 8, "J_p", 3),
    "seq of 2^64 - 1": (b'{"v":0,"verb":"ping","job":"J","seq":18446744073709551615}', OK_PING, 0, "J", 0),
    "a manifest that is a number": (P + b',"payload_manifest":5}', MALFORMED, 8, "J_p", 3),
    "a chunk that is an array": (P + b',"payload_chunk":[]}', MALFORMED, 8, "J_p", 3),
    "receipts that are an object": (P + b',"receipts":{}}', MALFORMED, 8, "J_p", 3),
    "a receipt with a negative value": (P + b',"receipts":[{"kind":"a","value_u64":-1}]}', MALFORMED, 8, "J_p", 3),
    "NaN": (P + b',"x":NaN}', MALFORMED, 8, "J_p", 3),
    "a raw control character in a string": (P + b',"x":"\x01"}', MALFORMED, 8, "J_p", 3),
    "two objects on a line": (P + b"}" + P + b"}", MALFORMED, 8, "J_p", 3),
    "text behind it": (P + b"} x", MALFORMED, 8, "J_p", 3),
    "bytes that are not UTF-8": (b'{"verb":"ping","job":"J\xff\xe2\x82","seq":4}', OK_PING, 5, "J" + "\ufffd" * 3, 0),
    "a lone surrogate": (b'{"verb":"ping","job":"J\\ud800","seq":4}', OK_PING, 5, "J\ufffd", 0),
    "a pair of surrogates": (b'{"verb":"ping","job":"\\ud83d\\ude00","seq":4}', OK_PING, 5, "\U0001f600", 0),
    "the character zero": (b'{"verb":"ping","job":"J\\u0000","seq":4}', OK_PING, 5, "J\0", 0),
    "arrays in arrays": (P + b',"x":' + b"[" * DEEP + b"]" * DEEP + b"}", OK_PING, 5, "J", 9),
    "10,001 arrays in one another": (P + b',"x":' + b"[" * 10001 + b"]" * 10001 + b"}", MALFORMED, 8, "J_p", 3),
    "white space around it": (b" \t\xc2\xa0\xc2\x85" + P + b"} \x0b\xe2\x80\x83", OK_PING, 5, "J", 9),
}  # fmt: skip
NOT_FRAMES: dict[str, tuple[bytes, str]] = {
    "GET": (b"GET / HTTP/1.1", "http_request"),
    "POST": (b"POST /", "http_request"),
    "PUT": (b"PUT /", "http_request"),
    "HEAD": (b"HEAD /", "http_request"),
    "another method": (b"DELETE /", "not_json"),
    "a small get": (b"get /", "not_json"),
    "GIF 87": (b"GIF87a,", "binary_gif"),
    "GIF 89": (b"GIF89a,", "binary_gif"),
    "doctype": (b"<!DOCTYPE html>", "html_document"),
    "html": (b"<html>", "html_document"),
    "HTML": (b"<HTML>", "html_document"),
    "xml": (b"<?xml version='1.0'?>", "xml_document"),
    "rss": (b"<rss>", "xml_document"),
    "feed": (b"<feed>", "xml_document"),
    "an array": (b"[1,2]", "json_array"),
    "a broken object": (b'{"v":', "json_malformed"),
    "a number": (b"42", "not_json"),
    "a string": (b'"x"', "not_json"),
    "true": (b"true", "not_json"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "not_json"),
}
SHARE = {"verb": "share", "job": "J", "seq": 4, "ttl_ms": 9}
ENVELOPES: dict[str, dict[str, Any]] = {
    "another version": {"v": 1, "verb": "ping", "job": "J", "seq": 4},
    "no job": {"verb": "ping", "seq": 4},
    "no seq": {"verb": "ping", "job": "J"},
    "no verb": {"job": "J", "seq": 4},
    "an unknown verb": {"verb": "frobnicate", "job": "J", "seq": 4},
    "a verb in capitals": {"verb": "PING", "job": "J", "seq": 4},
    "manifest and chunk": {**SHARE, "payload_manifest": {}, "payload_chunk": {}},
    "ping with a manifest": {**SHARE, "verb": "ping", "payload_manifest": {}},
    "ping with a chunk": {**SHARE, "verb": "ping", "payload_chunk": {}},
    "ping with a status": {**SHARE, "verb": "ping", "status": "ok"},
    "ping with a need": {**SHARE, "verb": "ping", "need_code": "x"},
    "ping with an error": {**SHARE, "verb": "ping", "error_code": "x"},
    "ping with a hint": {**SHARE, "verb": "ping", "retry_hint_ms": 1},
    "ping with a receipt": {**SHARE, "verb": "ping", "receipts": [{"kind": "x", "value_u64": 1}]},
    "share with nothing": SHARE,
    "share with a status": {**SHARE, "payload_manifest": {}, "status": "ok"},
    "clarify without a status": {**SHARE, "verb": "clarify"},
    "confirm with a payload": {**SHARE, "verb": "confirm", "status": "ok", "payload_chunk": {}},
}
DATA = b"hello world!"
MANIFESTS: dict[str, tuple[dict[str, Any], bool]] = {
    "a good one": ({}, True),
    "encoding left out": ({"content_encoding": ""}, True),
    "cipher left out": ({"cipher": ""}, True),
    "any type": ({"content_type": "x/y; z"}, True),
    "no digest": ({"sha256": ""}, True),
    "no total": ({"total_bytes": 0}, True),
    "more total than the chunks can hold": ({"total_bytes": 99}, True),
    "50 MiB": ({"chunk_bytes": 1024, "chunks": 51_200, "total_bytes": 0}, True),
    "a total that makes it less": ({"chunk_bytes": 1024, "chunks": 51_201, "total_bytes": 52_428_800}, True),
    "a byte more than 50 MiB": ({"chunk_bytes": 52_428_801, "chunks": 1, "total_bytes": 0}, False),
    "no id": ({"payload_id": ""}, False),
    "chunks of nothing": ({"chunk_bytes": 0}, False),
    "no chunks": ({"chunks": 0}, False),
    "packed": ({"content_encoding": "gzip"}, False),
    "enciphered": ({"cipher": "aes"}, False),
    "a product beyond 64 bits": ({"chunk_bytes": 2**32, "chunks": 2**32, "total_bytes": 0}, False),
    "an empty object": (dict.fromkeys(manifest(DATA)), False),
}


@pytest.mark.parametrize("name", READING)
def test_a_line_is_read_as_the_original_reads_it(name: str) -> None:
    line, sent, seq, job, ttl_ms = READING[name]
    peer = Rig().connect()
    peer.one(frame(verb="ping", job="J_p", seq=7, ttl_ms=3))
    reply = peer.one(line + b"\n")
    assert short(reply) == (*sent, seq)
    assert (reply["job"], reply["ttl_ms"]) == (job, ttl_ms)
    assert kinds(reply) == ([] if sent == OK_PING else REASON)
    assert list(reply)[:5] == ["v", "verb", "job", "seq", "ttl_ms"]
    assert not peer.closed


@pytest.mark.parametrize("name", NOT_FRAMES)
def test_what_is_no_frame_is_called_by_its_name(name: str) -> None:
    line, need = NOT_FRAMES[name]
    peer = Rig().connect()
    first = peer.one(line + b"\r\n")
    assert (short(first), first["job"], kinds(first)) == ((*bad(need), 1), "J_?", REASON)
    peer.one(frame(verb="ping", job="J_p", seq=7, ttl_ms=3))
    later = peer.one(b"  " + line + b"\n")
    assert (short(later), later["job"], later["ttl_ms"]) == ((*bad(need), 8), "J_p", 3)


@pytest.mark.parametrize("name", ENVELOPES)
def test_an_envelope_that_makes_no_sense_is_refused_in_its_own_name_and_forgotten(name: str) -> None:
    fields = ENVELOPES[name]
    peer = Rig().connect()
    peer.one(frame(verb="ping", job="J_p", seq=7))
    reply = peer.one(frame(**fields))
    assert short(reply) == (*ENVELOPE, fields.get("seq", 0) + 1)
    assert (reply["job"], reply["ttl_ms"]) == (fields.get("job", "J_?"), fields.get("ttl_ms", 0))
    assert kinds(reply) == REASON
    assert short(peer.one(b"?\n"))[4] == 8


@pytest.mark.parametrize("verb", ["clarify", "confirm"])
def test_a_servers_verb_from_a_client_takes_a_jobs_place_and_is_asked_for_its_payload(verb: str) -> None:
    peer = Rig(jobs=1).connect()
    reply = peer.one(frame(verb=verb, job="J", seq=4, status="anything"))
    assert short(reply) == ("clarify", "need", "missing_payload", "need_manifest_or_chunk", 5)
    assert kinds(reply) == REASON
    assert short(peer.one(frame(verb=verb, job="K", seq=4, status="anything")))[2] == "too_many_jobs"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_taken_or_sent_back(name: str) -> None:
    changed, good = MANIFESTS[name]
    peer = Rig().connect()
    reply = peer.one(frame(**SHARE, payload_manifest=manifest(DATA, **changed)))
    wanted = OK if good else ("clarify", "need", "manifest_invalid", "need_manifest_fix")
    assert short(reply) == (*wanted, 5)
    assert kinds(reply) == ([] if good else REASON)
    assert receipt(reply, "cdr.bytes_in") == 0


def test_two_manifests_on_a_line_are_one_field_by_field() -> None:
    peer = Rig().connect()
    whole = manifest(DATA)
    halves = [{key: whole[key] for key in list(whole)[start::2]} for start in (0, 1)]
    fields = ",".join(f'"payload_manifest":{json.dumps(half)}' for half in halves)
    assert peer.one(f'{{"verb":"share","job":"J","seq":1,{fields}}}\n'.encode())["status"] == "ok"
    assert peer.one(frame(verb="share", job="J", seq=2, payload_chunk=chunk(DATA[:8], 0)))["status"] == "ok"


def after_manifest(**changed: Any) -> Any:
    peer = Rig().connect()
    assert peer.one(frame(**SHARE, payload_manifest=manifest(DATA, **changed)))["status"] == "ok"
    return peer


def take_chunk(peer: Any, data: bytes, index: int, **changed: Any) -> Any:
    return peer.one(frame(**SHARE, payload_chunk=chunk(data, index, **changed)))


CHUNKS: dict[str, tuple[dict[str, Any], tuple[bytes, int, dict[str, Any]], tuple[str, str, str, str], int]] = {
    "the first": ({}, (DATA[:8], 0, {}), OK, 8),
    "a short one": ({}, (DATA[:3], 0, {}), OK, 3),
    "with a wrong offset": ({}, (DATA[:8], 0, {"offset": 77}), OK, 8),
    "with its digest in capitals and spaces": (
        {}, (b"x", 0, {"sha256": " 2D711642B726B04401627CA9FBAC32F5C8530FB1903CC4DB02258717921A4881\n"}), OK, 1,
    ),
    "with ends of line in its base64": ({}, (b"hello wo", 0, {"bytes_b64": "aGVs\r\nbG8g\nd28="}), OK, 8),
    "with loose bits at the end of its base64": ({}, (b"x", 0, {"bytes_b64": "eB=="}), OK, 1),
    "of another payload": ({}, (DATA[:8], 0, {"payload_id": "P_2"}), more("payload_id_mismatch"), 0),
    "one that is not next": ({}, (DATA[:8], 1, {}), more("chunk_expected_index"), 0),
    "without padding": ({}, (b"x", 0, {"bytes_b64": "eA"}), more("chunk_b64_invalid"), 0),
    "in the alphabet of URLs": ({}, (b"\xff", 0, {"bytes_b64": "_w=="}), more("chunk_b64_invalid"), 0),
    "with spaces in its base64": ({}, (b"x", 0, {"bytes_b64": "eA =="}), more("chunk_b64_invalid"), 0),
    "beyond ASCII": ({}, (b"x", 0, {"bytes_b64": "é==="}), more("chunk_b64_invalid"), 0),
    "larger than said": ({}, (DATA[:9], 0, {}), more("chunk_too_large"), 0),
    "that makes the payload larger than said": ({"total_bytes": 5}, (DATA[:8], 0, {}), more("payload_too_large"), 0),
    "with a wrong digest": ({}, (DATA[:8], 0, {"sha256": "0" * 64}), more("chunk_hash_mismatch"), 0),
    "without a digest": ({}, (DATA[:8], 0, {"sha256": ""}), more("chunk_hash_mismatch"), 0),
    "that makes the payload shorter than said": ({"chunks": 1}, (DATA[:8], 0, {}), more("payload_size_mismatch"), 8),
    "that makes the payload another": (
        {"chunks": 1, "total_bytes": 0}, (DATA[:8], 0, {}), more("payload_hash_mismatch"), 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHUNKS)
def test_a_chunk_is_kept_or_told_what_is_wrong_with_it(name: str) -> None:
    declared, (data, index, changed), sent, bytes_in = CHUNKS[name]
    peer = after_manifest(**declared)
    reply = take_chunk(peer, data, index, **changed)
    assert short(reply) == (*sent, 5)
    assert (kinds(reply), receipt(reply, "cdr.bytes_in")) == ([], bytes_in)
    assert peer.work is None


def test_a_chunk_without_a_manifest_is_asked_for_it() -> None:
    assert short(take_chunk(Rig().connect(), b"x", 0)) == (*more("manifest_missing"), 5)


def test_a_wrong_chunk_changes_nothing_and_the_right_one_is_taken_afterwards() -> None:
    peer = after_manifest()
    for wrong in (("x" * 8).encode(), 0, {"sha256": "0" * 64}), (DATA[:8], 5, {}), (DATA[:9], 0, {}):
        data, index, changed = wrong
        assert take_chunk(peer, data, index, **changed)["status"] == "need"
    assert take_chunk(peer, DATA[:8], 0)["status"] == "ok"
    assert peer.send(frame(**SHARE, payload_chunk=chunk(DATA[8:], 1))) == []
    assert bytes(peer.work.payload) == DATA


@pytest.mark.parametrize("changed", [{"total_bytes": 13}, {"sha256": "0" * 64}])
def test_a_payload_that_is_wrong_as_a_whole_begins_again(changed: dict[str, Any]) -> None:
    peer = after_manifest(**changed)
    take_chunk(peer, DATA[:8], 0)
    assert take_chunk(peer, DATA[8:], 1)["need_code"] in ("payload_size_mismatch", "payload_hash_mismatch")
    assert take_chunk(peer, b"", 2)["need_code"] == "manifest_missing"
    assert peer.rig.gate.held_bytes == 2 * len("J"), "the job begun again and the last frame have a name"
    assert peer.send(*upload(DATA, job="J"))[-1]["status"] == "ok"
    assert peer.work is not None


def test_an_empty_payload_is_one_empty_chunk() -> None:
    peer = Rig().connect()
    assert [reply["status"] for reply in peer.send(*upload(b""))] == ["ok"]
    assert (bytes(peer.work.payload), peer.finish()[0]["status"]) == (b"", "done")


def test_a_job_that_has_run_is_confirmed_and_its_name_is_free() -> None:
    peer = Rig().connect()
    assert [short(reply) for reply in peer.send(*upload(DATA))] == [(*OK, 2), (*OK, 3)]
    assert peer.rig.gate.status.inflight == 1
    (done,) = peer.finish(seconds=2.0004)
    assert short(done) == ("confirm", "done", "", "", 5)
    assert (kinds(done), receipt(done, "cdr.backend.ms")) == (["cdr.backend.ms", "conn.outcome"], 2000)
    assert [receipt(done, kind) for kind in ("cdr.bytes_in", "conn.outcome", "server.executed_total")] == [12, 1, 1]
    assert receipt(done, "server.health") == 1  # the place was given back before this was written
    assert short(take_chunk(peer, DATA, 1, payload_id="P_1"))[2] == "manifest_missing"
    assert peer.send(*upload(DATA))[-1]["status"] == "ok"


def test_what_a_backend_returns_goes_into_a_field_that_old_clients_skip() -> None:
    peer = Rig().connect()
    peer.send(*upload(DATA))
    (done,) = peer.finish(status=200, body_b64=base64.b64encode(b"{}").decode())
    assert (list(done)[-1], done["result"]) == ("result", {"status": 200, "body_b64": "e30="})


def test_a_failed_job_is_aborted_and_the_connection_stays() -> None:
    peer = Rig().connect()
    peer.send(*upload(DATA))
    (failed,) = peer.finish(Ended.FAILED, 1.5)
    assert short(failed) == ("confirm", "abort", "backend_error", "backend_error", 5)
    assert kinds(failed) == ["cdr.backend.ms", "conn.outcome", "conn.outcome_reason"]
    assert (receipt(failed, "conn.outcome"), receipt(failed, "conn.outcome_reason")) == (2, 8)
    assert not peer.closed
    assert peer.one(ping())["status"] == "ok"


def test_a_yield_says_why_when_and_that_two_frames_were_due() -> None:
    rig = Rig()
    waiting = rig.connect()
    waiting.send(*upload(DATA)[:-1])
    rig.connect().send(*upload(DATA))
    reply = waiting.one(upload(DATA)[-1])
    assert short(reply) == ("clarify", "yield", "server_busy", "busy", 5)
    assert (kinds(reply), receipt(reply, "conn.outcome"), receipt(reply, "conn.outcome_reason")) == (YIELDED, 3, 1)
    assert reply["retry_hint_ms"] == receipt(reply, "conn.retry_hint_ms") == 500
    assert list(reply)[5:] == ["status", "need_code", "retry_hint_ms", "error_code", "receipts"]
    assert (receipt(reply, "server.yielded_total"), receipt(reply, "server.health")) == (1, 0)
    assert receipt(reply, "cdr.bytes_in") == 12
    assert waiting.one(ping())["status"] == "ok"


def test_what_is_special_in_json_or_html_is_escaped_as_the_original_does() -> None:
    peer = Rig().connect()
    actions = peer.session.receive(b'{"verb":"ping","job":"<&>\\u2028\\b\\n\\"\\\\ \\u00e9\\u007f","seq":1}\n', 0.0)
    assert b'"job":"\\u003c\\u0026\\u003e\\u2028\\u0008\\n\\"\\\\ \xc3\xa9\x7f"' in bytes(actions.out)


def test_a_reply_is_compact_and_in_the_originals_order() -> None:
    peer = Rig().connect()
    actions = peer.session.receive(ping(), 0.0)
    assert bytes(actions.out) == (
        b'{"v":0,"verb":"confirm","job":"J_ping","seq":2,"ttl_ms":0,"status":"ok","receipts":['
        b'{"kind":"server.health","value_u64":1},{"kind":"backend.inflight","value_u64":0},'
        b'{"kind":"backend.cap","value_u64":1},{"kind":"server.executed_total","value_u64":0},'
        b'{"kind":"server.yielded_total","value_u64":0},{"kind":"cdr.bytes_in","value_u64":0}]}\n'
    )
