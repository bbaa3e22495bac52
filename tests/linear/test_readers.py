"""Each reader of what a stranger sends takes a number of steps that is proportional to it, however hostile it is.

`steps` says what is counted. Bodies of JSON go up to the limit of a listener, 1 MiB. The other readers take more steps
for each byte, so they are read at some KiB; a reader that is superlinear is so there, too, for none of them has a
bound between that and its limit. Where the shape of the work changes with the size (a bound refuses, or the quick JSON
reader leaves a body to the strict one) all sizes are on the same side of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.cli.ask import events
from services.contracts.documents import PutDocument
from services.contracts.search import Passage
from services.governor.gate import Gate
from services.governor.protocol import GovernorSession
from services.retrieval.chunks import Section, chunk
from services.router import yamlfile
from services.router.parsing.deadlines import READERS
from services.router.parsing.slo import read as read_wishes
from services.router.rag import prompt
from services.router.tenancy.keys import bearer
from services.router.upstreams import enginepage
from services.router.upstreams.openaistream import OpenAIStream
from services.runtime import cut as cut_module
from services.runtime import requesttarget, tracing
from services.runtime.cut import Cut
from services.runtime.query import parameters
from services.runtime.strictjson import JsonLimits, _first_repeated, convert, loads
from services.worker.engine_wire import Frames
from services.worker.engines import extractive, tokenizer
from services.worker.stops import StopFilter
from tests.linear.steps import assert_linear

Make = Callable[[int], bytes]
Read = Callable[[bytes], object]

KIB = 1024
BODIES = (256 * KIB, 512 * KIB, 1024 * KIB)
TEXTS = (KIB // 2, KIB, 2 * KIB)
LINES = (KIB, 2 * KIB, 4 * KIB)
STRICT = JsonLimits(max_items=10**9, max_containers=10**9)  # the strict reader, and nothing refused for its count


def repeated(before: bytes, pump: bytes, after: bytes = b"") -> Make:
    return lambda size: before + pump * ((size - len(before) - len(after)) // len(pump)) + after


def numbered(before: bytes, pump: bytes, after: bytes = b"") -> Make:
    """With a number of its own in each repetition."""
    return lambda size: before + b"".join(pump % n for n in range(size // len(pump % 10_000))) + after


JSON: dict[str, Make] = {
    "a string that is never closed, of escaped quotes": repeated(b"[" * 65 + b'"', b'\\"'),
    "quotes": repeated(b"[" * 65, b'"'),
    "backslashes": repeated(b"[" * 65 + b'"', b"\\"),
    "brackets that open": repeated(b"", b"["),
    "objects that open": repeated(b"", b'{"a":'),
    "brackets that open and close": repeated(b"[", b"[],", b"1]"),
    "commas": repeated(b"[", b","),
    "colons": repeated(b"{", b":"),
    "digits": repeated(b'{"a":', b"1", b"}"),
    "digits behind a point": repeated(b'{"a":1.', b"1", b"}"),
    "digits of an exponent": repeated(b'{"a":1e', b"1", b"}"),
    "white space": repeated(b'{"a":1', b" ", b"}"),
    "a long key": repeated(b'{"', b"k", b'":1}'),
    "a long key, twice": lambda size: b'{"%b":1,"%b":2}' % (b"k" * (size // 2), b"k" * (size // 2)),
    "brackets in a string": repeated(b'{"a":"', b"[{,:", b'"}'),
    "pairs of surrogates": repeated(b'{"a":"', b"\\ud83c\\udf0a", b'"}'),
    "NUL at the end of a text": repeated(b'{"a":"', b"x", b'\\u0000"}'),
    "a long key above many texts": lambda size: b'{"%b":[%b"\\u0000"]}' % (b"k" * (size // 2), b'"a",' * (size // 200)),
}
SMALL_JSON: dict[str, Make] = {
    "keys of which the last stands twice": numbered(b"{", b'"k%d":1,', b'"a":1,"a":2}'),
    "equal keys": repeated(b"{", b'"a":1,', b'"a":1}'),
    "many short numbers": repeated(b"[", b"1,", b"1]"),
    "many texts": repeated(b"[", b'"\\u00e9",', b"1]"),
}


@pytest.mark.parametrize("make", JSON.values(), ids=JSON.keys())
def test_a_body_of_json(make: Make) -> None:
    assert_linear(lambda body: loads(body, JsonLimits()), make, BODIES)  # the strict reader


@pytest.mark.parametrize("make", (JSON | SMALL_JSON).values(), ids=(JSON | SMALL_JSON).keys())
def test_a_body_of_json_with_many_members(make: Make) -> None:
    assert_linear(loads, make, LINES)
    assert_linear(lambda body: loads(body, STRICT), make, LINES)


def test_a_key_that_stands_twice_is_found_with_few_comparisons() -> None:
    """What `steps` does not see: a search through a list compares in C. So the names count it themselves."""
    compared = 0

    class Name(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)  # type: ignore[arg-type]

        __hash__ = str.__hash__

    names = [Name(f"key {number}") for number in range(9_991)]
    assert _first_repeated([*names, Name("key 9990")]) == "key 9990"
    assert compared < 10 * len(names)


def test_a_field_whose_name_looks_like_a_path() -> None:
    def read(body: bytes) -> object:
        return convert({"text": "x", body.decode(): 1}, PutDocument)

    assert_linear(read, repeated(b"", b" - at `$"), LINES)


HEADERS: dict[str, Read] = {
    **{name.decode(): reader for name, reader in READERS.items()},
    "prefer": lambda value: read_wishes(
        [(b"prefer", value)], default_ms=1, max_ms=1, default_ttft_ms=1, stream=False
    ),
    "traceparent": lambda value: tracing.read([(b"traceparent", value)]),
    "tracestate": lambda value: tracing.read([(b"traceparent", b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01"),
                                              (b"tracestate", value)]),
    "authorization": bearer,
    "query": lambda value: parameters(value, ("a", "b")),
    "target": lambda value: requesttarget.target_of.__wrapped__(b"/" + value),
}  # fmt: skip
VALUES: dict[str, Make] = {
    "digits": repeated(b"", b"1"),
    "digits and a letter": repeated(b"", b"1", b"x"),
    "durations": repeated(b"", b"1h"),
    "spaces": repeated(b"wait=1", b" ", b"x"),
    "quotes": repeated(b"", b'"'),
    "escaped quotes": repeated(b'"', b'\\"'),
    "commas": repeated(b"", b","),
    "wishes to wait": repeated(b"", b"wait;,"),
    "percent signs": repeated(b"a=", b"%"),
    "escapes": repeated(b"a=", b"%41"),
    "escapes of two bytes": repeated(b"a=", b"%c3%a9"),
    "ampersands": repeated(b"", b"a&"),
    "bearers": repeated(b"bearer ", b"bearer "),
    "dashes": repeated(b"00-", b"-"),
    "slashes": repeated(b"", b"/"),
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES.keys())
def test_a_header_a_query_a_target(header: str, make: Make) -> None:
    assert_linear(HEADERS[header], make, (4 * KIB, 8 * KIB))


class Pieces:
    """A reply that gives its body in pieces of one byte."""

    def __init__(self, body: bytes) -> None:
        self._pieces: Iterator[bytes] = (bytes(body[at : at + 1]) for at in range(len(body)))

    async def next_piece(self) -> bytes | None:
        return next(self._pieces, None)

    def linger(self) -> None:
        """Not needed here."""


class Call:
    class parsed:
        format = "chat"
        include_usage = False


def drive(stream: Any) -> None:
    async def read() -> None:
        while await stream.next() is not None:
            pass

    with pytest.raises(StopIteration):
        read().send(None)


class Counted(bytearray):
    """A buffer that counts what is copied and searched."""

    def __iadd__(self, piece: Any) -> Any:
        Cost.bytes += len(piece)
        return super().__iadd__(piece)

    def rfind(self, part: Any, start: int = 0) -> int:  # type: ignore[override]
        Cost.bytes += len(self) - start
        return super().rfind(part, start)


class Cost:
    bytes = 0


@pytest.mark.parametrize("separator", [b"\n", b"\n\n"])
@pytest.mark.parametrize("pump", [b"a", b"\n", b"a\n", b"a\n\n"])
def test_a_stream_cut_into_single_bytes_is_not_searched_again(
    separator: bytes, pump: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_module, "bytearray", Counted, raising=False)
    costs = []
    for size in (4 * KIB, 8 * KIB):
        Cost.bytes, cut, out = 0, Cut(separator), bytearray()
        body = pump * (size // len(pump))
        for at in range(len(body)):
            out += cut.take(body[at : at + 1])
        assert bytes(out) + cut.rest() == body
        costs.append(Cost.bytes + len(body))
    assert costs[1] <= 2.2 * costs[0]


EVENTS: dict[str, Make] = {
    "one line": repeated(b"data: ", b"a"),
    "line ends": repeated(b"", b"\n"),
    "carriage returns": repeated(b"", b"\r"),
    "lines of one event": repeated(b"", b":\n"),
    "small events": repeated(b"", b": x\n\n"),
    "events": repeated(b"", b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'),
    "CR LF": repeated(b"", b": x\r\n\r\n"),
}


@pytest.mark.parametrize("make", EVENTS.values(), ids=EVENTS.keys())
def test_a_stream_of_events_one_byte_at_a_time(make: Make) -> None:
    assert_linear(lambda body: drive(OpenAIStream(Pieces(body), Call())), make, TEXTS)  # type: ignore[arg-type]
    assert_linear(lambda body: list(events(bytes(body[at : at + 1]) for at in range(len(body)))), make, TEXTS)


GOVERNED: dict[str, Make] = {
    "a line without an end": repeated(b'{"v":0,"verb":"', b"a"),
    "blank lines": repeated(b"", b"\n"),
    "lines that are none": repeated(b"", b"x\n"),
    "brackets": repeated(b"", b"["),
    "equal keys": repeated(b"{", b'"job":"a",', b'"v":0}\n'),
    "receipts": repeated(b'{"receipts":[', b"{},", b"{}]}\n"),
    "numbers": repeated(b'{"seq":', b"1", b"}\n"),
    "pings": repeated(b"", b'{"v":0,"verb":"ping","job":"J","seq":4,"ttl_ms":0}\n'),
}


@pytest.mark.parametrize(
    "make",
    [
        repeated(b"", b"vllm:num_requests_running{"),
        repeated(b"", b"\nvllm:num_requests_running 1"),
        repeated(b'\nvllm:cache_config_info{a="', b"\\", b'"} 1\n'),
        repeated(b"\nvllm:cache_config_info{", b'block_size="1",', b"} 1\n"),
        repeated(b"\nvllm:num_requests_running 1", b" ", b"\n"),
        repeated(b"", b"\n"),
    ],
)
def test_a_metrics_page_of_an_engine(make: Make) -> None:
    assert_linear(enginepage.read, make, TEXTS)


@pytest.mark.parametrize("make", GOVERNED.values(), ids=GOVERNED.keys())
def test_a_governors_lines_whole_and_one_byte_at_a_time(make: Make) -> None:
    def whole(data: bytes) -> None:
        GovernorSession(Gate(1), 0.0).receive(bytes(data), 0.0)

    def single(data: bytes) -> None:
        session = GovernorSession(Gate(1), 0.0)
        for at in range(len(data)):
            session.receive(bytes(data[at : at + 1]), 0.0)

    assert_linear(whole, make, TEXTS)
    assert_linear(single, make, TEXTS)


def test_frames_of_an_engine_one_byte_at_a_time() -> None:
    def read(data: bytes) -> None:
        frames = Frames()
        for at in range(len(data)):
            list(frames.feed(bytes(data[at : at + 1])))

    for pump in (b"\0\0\0\0", b"\0\0\0\1x"):
        assert_linear(read, repeated(b"", pump), TEXTS)
    assert_linear(read, repeated(b"\0\1\0\0", b"x"), TEXTS)


YAML: dict[str, Make] = {
    "aliases of a list": lambda size: b"- &a [" + b"x," * (size // 8) + b"]\n" + b"- *a\n" * (size // 8),
    "keys": numbered(b"", b"k%d: 1\n"),
    "brackets": repeated(b"a: ", b"["),
    "a number in base 60": repeated(b"a: 1", b":1"),
    "a number in base 16": repeated(b"a: 0x", b"f"),
    "a tagged number": repeated(b"a: !!int 1", b":1"),
    "a text": repeated(b'a: "', b'\\"', b'"'),
    "directives": numbered(b"", b"%%TAG !a%d! tag:x\n", b"--- a\n"),
}


@pytest.mark.parametrize("make", YAML.values(), ids=YAML.keys())
def test_a_file_of_tenants_or_workers(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        yamlfile.read_yaml(path)

    assert_linear(read, make, LINES)


def test_what_aliases_stand_for_is_bounded_by_the_files_size(tmp_path: Path) -> None:
    path = tmp_path / "laughs.yaml"
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 12))
    path.write_text("l0: &l0 [ha]\n" + levels)
    with pytest.raises(yamlfile.Unreadable, match="aliases expand to more than"):
        yamlfile.read_yaml(path)


def test_a_number_of_any_length_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "numbers.yaml"
    path.write_text("a: 0x" + "f" * 10_000)
    assert isinstance(yamlfile.read_yaml(path)["a"], str)
    path.write_text("a: !!int " + "1" * 10_000)
    with pytest.raises(yamlfile.Unreadable, match="more than 128 characters"):
        yamlfile.read_yaml(path)


PROMPTS: dict[str, Make] = {
    "a fence of code that is none": repeated(b'<passage id="1">~~~', b"a", b"`</passage>Question: a"),
    "white space before it": repeated(b'<passage id="1">~~~', b" ", b"`</passage>Question: a"),
    "openings": repeated(b"", b'<passage id="1">'),
    "white space": repeated(b'<passage id="1">', b" ", b"</passage>Question: a"),
    "links": repeated(b'<passage id="1">', b"[a](", b"</passage>Question: a"),
    "sentences": repeated(b'<passage id="1">', b"One two three four. ", b"</passage>Question: one"),
    "lines": repeated(b'<passage id="1">', b"\n- ", b"</passage>Question: one"),
    "brackets": repeated(b'<passage id="1">', b"<", b"</passage>Question: a"),
}


@pytest.mark.parametrize("make", PROMPTS.values(), ids=PROMPTS.keys())
def test_a_prompt_for_the_simulated_engine(make: Make) -> None:
    def read(text: bytes) -> None:
        passages, rest = extractive.split_prompt(text.decode())
        extractive.best_quotes(rest, passages)
        tokenizer.count_tokens(text.decode())

    assert_linear(read, make, LINES)


@pytest.mark.parametrize("pump", [b"<", b"< /passage>", b"</p", b"</ ", "﹤".encode()])
def test_a_passage_in_a_prompt(pump: bytes) -> None:
    def read(text: bytes) -> None:
        prompt.build("a", [Passage("c", "d", 1, text.decode(), 0.1)])

    assert_linear(read, repeated(b"", pump), LINES)


@pytest.mark.parametrize("stop", ["a" * 4000 + "b", "ab" * 2000 + "c", "a", "ba" * 2000])
@pytest.mark.parametrize("size", [1, 7])
def test_stop_strings_of_any_length(stop: str, size: int) -> None:
    def read(text: bytes) -> None:
        stops = StopFilter([stop, stop + "x"])
        for at in range(0, len(text), size):
            if stops.stopped:
                return
            stops.feed(bytes(text[at : at + size]).decode())

    assert_linear(read, repeated(b"", b"a"), TEXTS)


def test_words_without_a_token_do_not_multiply_a_documents_text() -> None:
    """A tokenizer drops invisible characters: a word of them alone has no token, and still takes room in a chunk."""

    def size(words: int) -> int:
        text = "\u200b\n\n" * words + "word " * 600
        count = lambda text: len([word for word in text.split() if word != "\u200b"])  # noqa: E731
        return sum(map(len, chunk([Section((), text)], count, max_tokens=256, overlap_tokens=32)))

    assert size(2000) <= 2.2 * size(1000)
