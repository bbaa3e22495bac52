"""A worker that sends nothing, very little, or without end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadtests.faults.evil.row import CUT, OPENAI, REFUSED, WEIR, Row
from loadtests.faults.evil.talk import LAST_CHUNK, Talk, chunks
from loadtests.faults.evil.worker import Trick, sends, sends_for_ever

FOR_EVER_S = 3600.0
TRICKLE_S = 0.05
MEGABYTE = 1_048_576
STILL_HERE = b": still here\n\n" * 10


def then_silence(*steps: Callable[[Talk], bytes]) -> Trick:
    async def act(talk: Talk) -> None:
        await sends(*steps)(talk)
        await asyncio.sleep(FOR_EVER_S)

    return act


async def trickled_head(talk: Talk) -> None:
    for byte in talk.head():
        await talk.send(bytes((byte,)))
        await asyncio.sleep(TRICKLE_S)


async def giant_line(talk: Talk) -> None:
    """An event of 20 MB, then the rest of the answer."""
    await talk.send(talk.head(), chunks(*(talk.started if talk.stream else ())))
    for _ in range(20):
        await talk.send(chunks(b" " * MEGABYTE))
    await talk.send(chunks(*talk.rest), LAST_CHUNK)


silence_before_the_end = then_silence(lambda talk: talk.head() + chunks(*talk.pieces[:-1]))
trickle = sends_for_ever(Talk.beginning, again=lambda talk: chunks(b" "), every_s=TRICKLE_S)
no_line_ever = sends_for_ever(Talk.beginning, again=lambda talk: chunks(b"x" * 65_536))
tokens_for_ever = sends_for_ever(
    lambda talk: talk.head() + chunks(*(talk.words if talk.stream else talk.started)),
    again=lambda talk: chunks(*[talk.token("")] * 100),
)
comments_for_ever = sends_for_ever(Talk.beginning, again=lambda talk: chunks(STILL_HERE), every_s=TRICKLE_S)

SILENCE = (
    Row("no answer at all", then_silence(), REFUSED, REFUSED, slow=True),
    Row("headers, then silence", then_silence(Talk.head), REFUSED, REFUSED, slow=True),
    Row("half an answer, then silence", then_silence(Talk.beginning), CUT, REFUSED, slow=True),
    Row("everything but the last event, then silence", silence_before_the_end, CUT, REFUSED, slow=True),
    Row("a byte now and again", trickle, CUT, REFUSED, slow=True),
    Row("a head that comes byte by byte", trickled_head, REFUSED, REFUSED, slow=True),
    Row("a line of 20 MB", giant_line, CUT),
    Row("a line without end", no_line_ever, CUT),
    Row("tokens without end", tokens_for_ever, CUT, REFUSED, WEIR, slow=True),
    Row("comments without end", comments_for_ever, CUT, REFUSED, kinds=OPENAI, slow=True),
)
