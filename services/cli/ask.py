"""`weir ask`: one question, its answer as it is written, and its sources.

Text from the server is untrusted: it is printed as `Text`, so that rich finds no markup in it, and without the control
characters that a terminal executes (`plain`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import httpx2
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from services.cli.errors import LabError
from services.contracts.answer import AskReply, AskRequest, Citation
from services.contracts.problem import ErrorBody, Problem
from services.runtime.cut import Cut

EXIT_REFUSED = 1
_NO_COMMANDS = dict.fromkeys(
    [
        *(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"),  # C0 with ESC, DEL, C1
        *range(0x202A, 0x202F), *range(0x2066, 0x206A),  # marks that turn the direction of text
    ]
)  # fmt: skip
ANSWER_WITHIN_S = 180.0
CONNECT_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    tenant: str = "demo"
    top_k: int = 5
    max_tokens: int = 256
    key: str = ""


class SseEvent(NamedTuple):
    name: str
    data: bytes


class TokenData(msgspec.Struct):
    text: str


def plain(text: str) -> str:
    """The text without terminal control characters (ECMA-48: C0, C1, ESC) and marks that change its direction."""
    return text.translate(_NO_COMMANDS)


def one_line(text: str) -> str:
    """`plain`, with all white space as one space."""
    return " ".join(plain(text).split())


def ask(question: Question, router_url: str, console: Console) -> int:
    """Ask and print. Returns 0 if answered, 1 if refused. Raises LabError."""
    body = AskRequest(
        query=question.text,
        tenant=question.tenant,
        top_k=question.top_k,
        max_tokens=question.max_tokens,
        stream=console.is_terminal,
    )
    headers = {
        "content-type": "application/json",
        **({"authorization": f"Bearer {question.key}"} if question.key else {}),
    }
    limits = httpx2.Timeout(ANSWER_WITHIN_S, connect=CONNECT_WITHIN_S)
    try:
        with (
            httpx2.Client(timeout=limits, trust_env=False) as client,
            client.stream("POST", f"{router_url}/ask", content=msgspec.json.encode(body), headers=headers) as reply,
        ):
            if reply.status_code != 200:
                return refused(console, reply.status_code, reply.read())
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                return follow(console, events(reply.iter_bytes()))
            return show(console, msgspec.json.decode(reply.read(), type=AskReply))
    except httpx2.ConnectError as error:
        raise LabError(
            f"Nothing answers at {router_url}: `weir up` starts the stack, --router names another."
        ) from error
    except httpx2.HTTPError as error:
        raise LabError(f"{router_url} was lost while it answered: {plain(str(error))}.") from error
    except msgspec.DecodeError as error:
        raise LabError(f"The server at {router_url} is not a Weir router: {plain(str(error))}.") from error


def events(pieces: Iterator[bytes]) -> Iterator[SseEvent]:
    """Parse server-sent events, however the network has split them."""
    cut = Cut(b"\n\n")
    for piece in pieces:
        for block in cut.take(piece).split(b"\n\n"):
            fields = dict(line.split(b": ", 1) for line in block.splitlines() if b": " in line and line[:1] != b":")
            if b"data" in fields:
                yield SseEvent(fields.get(b"event", b"").decode(), fields[b"data"])


def follow(console: Console, stream: Iterator[SseEvent]) -> int:
    """Show the answer while it is written. The last event holds the whole answer with its sources."""
    text_so_far = Text()
    with Live(
        Padding(text_so_far, (1, 2)), console=console, refresh_per_second=15, vertical_overflow="visible"
    ) as live:
        for event in stream:
            if event.name == "token":
                text_so_far.append(plain(msgspec.json.decode(event.data, type=TokenData).text))
                live.update(Padding(text_so_far, (1, 2)))
            elif event.name == "error":
                live.stop()
                return refused(console, 200, event.data)
            elif event.name == "answer":
                live.stop()
                console.print(sources(msgspec.json.decode(event.data, type=AskReply)))
                return 0
    raise LabError("The answer is incomplete: the router or its worker was lost.")


def show(console: Console, reply: AskReply) -> int:
    text = Text(plain(reply.text))
    console.print(Padding(text, (1, 2)) if console.is_terminal else text, soft_wrap=True)
    console.print(sources(reply))
    return 0


def sources(reply: AskReply) -> RenderableType:
    """Each document once, with its nearest passage; then one line about how the answer was made."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", width=9, justify="right")
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(style="dim", no_wrap=True)
    nearest: dict[str, list[Citation]] = {}
    for citation in reply.citations:
        nearest.setdefault(citation.doc_id, []).append(citation)
    for index, (doc_id, found) in enumerate(nearest.items()):
        passages = f", {len(found)} passages" if len(found) > 1 else ""
        distance = min(citation.distance for citation in found)
        grid.add_row("" if index else "sources", Text(one_line(doc_id)), f"distance {distance:.2f}{passages}")
    if not nearest:
        grid.add_row("sources", "none", Text(f"retrieval: {one_line(reply.retrieval_source)}"))
    return Group(grid, "", Text(f"  {one_line(retrieval_line(reply))}", style="dim"))


def retrieval_line(reply: AskReply) -> str:
    cut = f", without {', '.join(reply.degraded)}" if reply.degraded else ""
    return (
        f"{reply.source}{cut} · {reply.served_ms:.0f} ms, of which retrieval {reply.retrieval_ms:.0f} "
        f"({reply.retrieval_source}) and inference {reply.inference_served_ms:.0f} · "
        f"{reply.usage.prompt_tokens} tokens read, {reply.usage.completion_tokens} written"
    )


def refused(console: Console, status: int, body: bytes) -> int:
    try:
        error = msgspec.json.decode(body, type=Problem).error
    except msgspec.DecodeError as fault:
        raise LabError(f"The router answered with status {status} and no reason.") from fault
    console.print(Text.assemble(("✗ ", "bold red"), (plain(error.message), "bold")), soft_wrap=True)
    for line in hints(error, status):
        console.print(Text(f"    {one_line(line)}", style="dim"), soft_wrap=True)
    return EXIT_REFUSED


def hints(error: ErrorBody, status: int) -> Iterator[str]:
    details = error.details
    facts = [error.code, *([] if status == 200 else [f"HTTP {status}"])]
    if details.reason and details.reason != error.code:
        facts.append(details.reason)
    if details.predicted_wait_ms is not None:
        facts.append(f"predicted wait {details.predicted_wait_ms} ms")
    yield ", ".join(facts)
    if details.retry_hint_ms is not None:
        yield f"Try again in {details.retry_hint_ms / 1000:.1f} s."
