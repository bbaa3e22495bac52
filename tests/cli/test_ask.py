"""`weir ask`: streams however they are cut, answers with their sources, refusals in plain words."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from rich.console import Console

from services.cli.ask import Question, ask, events, follow, refused, show, sources
from services.cli.errors import LabError
from services.cli.ports import free_port
from services.contracts.answer import AskReply, Citation, Usage

REPLY = {
    "text": "At half past six [1].",
    "source": "tier1",
    "retrieval_source": "db",
    "top_k_used": 2,
    "served_ms": 80.4,
    "retrieval_ms": 12.1,
    "inference_served_ms": 61.9,
    "level": 0,
    "degraded": [],
    "citations": [
        {"doc_id": "lock.md", "chunk_id": "lock.md#0", "distance": 0.31},
        {"doc_id": "lock.md", "chunk_id": "lock.md#1", "distance": 0.22},
    ],
    "usage": {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47},
}
STREAM = (
    b'event: token\ndata: {"text":"At half"}\n\n'
    b": keep-alive\n\n"
    b'event: token\ndata: {"text":" past six [1]."}\n\n'
    b"event: answer\ndata: " + json.dumps(REPLY).encode() + b"\n\ndata: [DONE]\n\n"
)


def page() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=120), out


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_a_stream_is_read_the_same_however_the_network_cuts_it(size: int) -> None:
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event.name for event in events(iter(pieces))] == ["token", "token", "answer", ""]


def test_a_streamed_answer_ends_with_its_sources() -> None:
    console, out = page()
    assert follow(console, events(iter([STREAM]))) == 0
    text = out.getvalue()
    assert "At half past six [1]." in text
    assert "lock.md" in text
    assert "distance 0.22, 2 passages" in text
    assert "40 tokens read, 7 written" in text


def test_a_stream_that_breaks_off_is_not_taken_for_an_answer() -> None:
    console, _ = page()
    with pytest.raises(LabError, match="incomplete"):
        follow(console, events(iter([STREAM[:60]])))


def test_a_refusal_is_a_sentence_and_says_when_to_come_back() -> None:
    console, out = page()
    details = {"status": "yield", "reason": "platform_full", "retry_hint_ms": 1240}
    error = {"message": "The platform is full.", "type": "rate_limit_error", "code": "yield", "details": details}
    assert refused(console, 429, json.dumps({"error": error}).encode()) == 1
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines == ["✗ The platform is full.", "yield, HTTP 429, platform_full", "Try again in 1.2 s."]


def test_what_was_cut_and_that_nothing_was_found_is_said() -> None:
    console, out = page()
    reply = AskReply(
        text="...", source="degraded", retrieval_source="none", top_k_used=0, served_ms=1, retrieval_ms=1,
        inference_served_ms=1, level=1, degraded=["retrieval"], citations=[], usage=Usage(1, 1, 2),
    )  # fmt: skip
    console.print(sources(reply))
    assert "retrieval: none" in out.getvalue()
    assert "degraded, without retrieval" in out.getvalue()


@pytest.mark.sockets
def test_no_router_there_is_one_sentence() -> None:
    console, _ = page()
    with pytest.raises(LabError, match="weir up"):
        ask(Question("Is anybody there?"), f"http://127.0.0.1:{free_port()}", console)


ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[red]x[/blue]"
HARMLESS = "]0;owned[2J31m[red]x[/blue]"


def test_no_word_of_the_server_reaches_the_terminal_as_a_command_or_as_markup() -> None:
    reply = AskReply(
        text=ATTACK, source=ATTACK, retrieval_source=ATTACK, top_k_used=0, served_ms=1, retrieval_ms=1,
        inference_served_ms=1, level=1, degraded=[ATTACK], citations=[Citation(f"doc [/red] {ATTACK}", "c", 0.1)],
        usage=Usage(1, 1, 2),
    )  # fmt: skip
    console, out = page()
    console.width = 2000
    show(console, reply)
    show(console, msgspec.structs.replace(reply, citations=[]))
    details = {"status": "yield", "reason": ATTACK}
    error = {"message": ATTACK, "type": "x", "code": ATTACK, "details": details}
    refused(console, 429, json.dumps({"error": error}).encode())
    token = b"event: token\ndata: " + json.dumps({"text": ATTACK}).encode() + b"\n\n"
    known = msgspec.structs.replace(reply, source="tier1", retrieval_source="db")
    final = b"event: answer\ndata: " + msgspec.json.encode(known) + b"\n\n"
    follow(console, events(iter([token + final])))
    text_so_far = out.getvalue()
    assert not set("\x1b\x07\x9b\u202e").intersection(text_so_far)
    assert text_so_far.count(HARMLESS) >= 10
    assert f"doc [/red] {HARMLESS}" in text_so_far
