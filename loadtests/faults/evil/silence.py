"""A worker that says nothing, or hardly anything, or never stops."""

from __future__ import annotations

import asyncio

from loadtests.faults.evil.row import CUT, OPENAI, REFUSED, WEIR, Row
from loadtests.faults.evil.talk import Talk, chunks

FOR_EVER_S = 3600.0
TRICKLE_S = 0.05
MEGABYTE = 1_048_576


async def _for_ever() -> None:
    await asyncio.sleep(FOR_EVER_S)


async def no_answer(talk: Talk) -> None:
    await _for_ever()


async def headers_then_silence(talk: Talk) -> None:
    await talk.say(talk.head())
    await _for_ever()


async def half_then_silence(talk: Talk) -> None:
    await talk.say(talk.head(), chunks(*talk.begun))
    await _for_ever()


async def silence_before_the_end(talk: Talk) -> None:
    await talk.say(talk.head(), chunks(*talk.pieces[:-1]))
    await _for_ever()


async def trickle(talk: Talk) -> None:
    """Well begun, and then a byte now and again that never makes an event."""
    await talk.say(talk.head(), chunks(*talk.begun))
    while True:
        await talk.say(chunks(b" "))
        await asyncio.sleep(TRICKLE_S)


async def trickled_head(talk: Talk) -> None:
    for byte in talk.head():
        await talk.say(bytes((byte,)))
        await asyncio.sleep(TRICKLE_S)


async def giant_line(talk: Talk) -> None:
    """An event of 20 MB, and then the rest as if nothing had been."""
    await talk.say(talk.head(), chunks(*(talk.begun if talk.stream else ())))
    for _ in range(20):
        await talk.say(chunks(b" " * MEGABYTE))
    await talk.say(chunks(*talk.pieces[len(talk.begun) if talk.stream else 0 :]), b"0\r\n\r\n")


async def no_line_ever(talk: Talk) -> None:
    await talk.say(talk.head(), chunks(*talk.begun))
    while True:
        await talk.say(chunks(b"x" * 65_536))


async def tokens_for_ever(talk: Talk) -> None:
    """More than was ever asked for; all of it in words that add nothing to it."""
    await talk.say(talk.head(), chunks(*(talk.words if talk.stream else talk.begun)))
    while True:
        await talk.say(chunks(*[talk.token("")] * 100))


async def empty_events_for_ever(talk: Talk) -> None:
    """Events that keep the line busy and say nothing."""
    await talk.say(talk.head(), chunks(*talk.begun))
    while True:
        await talk.say(chunks(b": still here\n\n" * 10))
        await asyncio.sleep(TRICKLE_S)


SILENCE = (
    Row("no answer at all", no_answer, REFUSED, REFUSED, slow=True),
    Row("headers, then silence", headers_then_silence, REFUSED, REFUSED, slow=True),
    Row("half an answer, then silence", half_then_silence, CUT, REFUSED, slow=True),
    Row("everything but the last event, then silence", silence_before_the_end, CUT, REFUSED, slow=True),
    Row("a byte now and again", trickle, CUT, REFUSED, slow=True),
    Row("a head that comes byte by byte", trickled_head, REFUSED, REFUSED, slow=True),
    Row("a line of 20 MB", giant_line, CUT),
    Row("a line without end", no_line_ever, CUT),
    Row("tokens without end", tokens_for_ever, CUT, REFUSED, WEIR, slow=True),
    Row("comments without end", empty_events_for_ever, CUT, REFUSED, kinds=OPENAI, slow=True),
)
