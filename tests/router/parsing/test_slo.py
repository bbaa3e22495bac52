"""What headers may wish for, and what becomes of odd ones: one table for each wish."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.parsing.slo import FIELD_OF, RequestSLO, read
from services.runtime.errors import BadInput

DEFAULT_MS, MAX_MS, TTFT_MS = 30_000.0, 120_000.0, 2_000.0


def wishes(*headers: tuple[bytes, bytes], stream: bool = False) -> RequestSLO:
    around = [(b"host", b"x"), *headers, (b"accept", b"*/*")]
    return read(around, default_ms=DEFAULT_MS, max_ms=MAX_MS, default_ttft_ms=TTFT_MS, stream=stream)


def test_without_a_wish_everything_is_as_usual() -> None:
    assert wishes() == RequestSLO(DEFAULT_MS, DEFAULT_MS, False, None, None, 0)
    assert wishes(stream=True) == RequestSLO(DEFAULT_MS, TTFT_MS, False, None, None, 0)


DEADLINES = [
    (b"x-weir-deadline-ms", b"5", 5.0),
    (b"x-weir-deadline-ms", b" 5 ", 5.0),
    (b"x-weir-deadline-ms", b"0.5", 0.5),
    (b"x-weir-deadline-ms", b"1e3", 1000.0),
    (b"x-weir-deadline-ms", b"1E+3", 1000.0),
    (b"x-weir-deadline-ms", b"000250", 250.0),
    (b"x-weir-deadline-ms", b"120000", 120_000.0),
    (b"x-weir-deadline-ms", b"1e-99", 1e-99),
    (b"x-weir-deadline-ms", b"333.3333333333333", 1000 / 3),  # what is left of a second, as Python prints it
    (b"x-weir-deadline-ms", b"0.1000000000000000055", 0.1),
    (b"x-weir-deadline-ms", b"5e-324", 5e-324),
    (b"x-llm-d-inference-ttl", b"2s", 2000.0),
    (b"x-llm-d-inference-ttl", b"1m1.5s", 61_500.0),
    (b"x-llm-d-inference-ttl", "500µs".encode(), 0.5),
    (b"x-envoy-expected-rq-timeout-ms", b"250", 250.0),
    (b"grpc-timeout", b"3S", 3000.0),
    (b"grpc-timeout", b"2M", 120_000.0),
    (b"grpc-timeout", b"30m", 30.0),
    (b"grpc-timeout", b"99999999n", 99.999999),
    (b"grpc-timeout", b"99999999H", 120_000.0),  # a proxy's word for all: it counts as the longest there is
    (b"x-llm-d-inference-ttl", b"2h", 120_000.0),
    (b"x-envoy-expected-rq-timeout-ms", b"300000", 120_000.0),
]
NO_DEADLINES = [
    b"", b" ", b"0", b"0.0", b"0e5", b"-1", b"-0", b"+5", b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"1e308",
    b"1e999", b"120000.001", b"120001", b"1_0", "١٢".encode(), "５".encode(), b"true", b"null", b'"5"', b"'5'",
    b"5ms", b"5 s", b"5,6", b"5;6", b"0x10", b"1e", b"e3", b".5", b"5.", b"1.2.3", b"5 5", b"5\x00", b"\x005",
    b"5\r\nX: y", b"\xff", b"\xc2\xb2", b"2026-01-01T00:00:00Z", b"1767225600000", b"9" * 400,
    b"0" * 16 + b"5", b"5" + b"0" * 4000, b"1e-999", b"1e-0001", b"1." + b"3" * 21,
]  # fmt: skip
NO_DURATIONS = [
    (b"x-llm-d-inference-ttl", b"2"),
    (b"x-llm-d-inference-ttl", b"1ms" * 9),
    (b"x-llm-d-inference-ttl", b"0" * 62 + b"1ms"),
    (b"x-llm-d-inference-ttl", b"1" * 16_000),
    (b"x-llm-d-inference-ttl", b"-2s"),
    (b"x-llm-d-inference-ttl", b"2s!"),
    (b"x-llm-d-inference-ttl", b"s"),
    (b"x-llm-d-inference-ttl", b"0s"),
    (b"x-llm-d-inference-ttl", b"2 s"),
    (b"x-llm-d-inference-ttl", b"\xff\xfes"),
    (b"x-llm-d-inference-ttl", b"9" * 400 + b"h"),
    (b"grpc-timeout", b"123456789S"),
    (b"grpc-timeout", b"3"),
    (b"grpc-timeout", b"3s"),
    (b"grpc-timeout", b"1.5S"),
    (b"grpc-timeout", b"0S"),
    (b"grpc-timeout", "١S".encode()),
    (b"x-envoy-expected-rq-timeout-ms", b"15s"),
    (b"x-envoy-expected-rq-timeout-ms", b"0"),
    (b"x-weir-ttft-ms", b"0"),
    (b"x-weir-ttft-ms", b"nan"),
    (b"x-weir-ttft-ms", b"-1"),
    (b"x-weir-ttft-ms", b"120001"),
    (b"x-llm-d-slo-ttft-ms", b"2s"),
    *((b"x-weir-deadline-ms", value) for value in NO_DEADLINES),
    *((b"x-weir-ttft-ms", value) for value in NO_DEADLINES),
]


@pytest.mark.parametrize(("name", "value", "milliseconds"), DEADLINES)
def test_a_deadline_may_be_said_in_any_of_these_words(name: bytes, value: bytes, milliseconds: float) -> None:
    assert wishes((name, value)).deadline_ms == pytest.approx(milliseconds, rel=1e-12)


@pytest.mark.parametrize(("name", "value"), NO_DURATIONS)
def test_what_is_no_duration_is_refused_by_the_name_of_its_header(name: bytes, value: bytes) -> None:
    for stream in (False, True):
        with pytest.raises(BadInput) as refused:
            wishes((name, value), stream=stream)
        assert refused.value.status == 400
        assert refused.value.param == name.decode()
        assert name.decode() in refused.value.message
        assert "\n" not in refused.value.message


def test_the_least_of_several_deadlines_counts_and_one_that_is_none_spoils_the_rest() -> None:
    assert wishes((b"grpc-timeout", b"3S"), (b"x-weir-deadline-ms", b"900")).deadline_ms == 900
    assert wishes((b"x-weir-deadline-ms", b"900"), (b"x-weir-deadline-ms", b"300")).deadline_ms == 300
    with pytest.raises(BadInput):
        wishes((b"grpc-timeout", b"3S"), (b"x-weir-deadline-ms", b"soon"))


def test_a_stream_has_until_its_first_token_and_no_longer_than_its_deadline() -> None:
    asked = wishes((b"x-weir-ttft-ms", b"300"), stream=True)
    assert (asked.ttft_ms, asked.ttft_asked) == (300, True)
    alias = wishes((b"x-llm-d-slo-ttft-ms", b"250"), (b"x-weir-ttft-ms", b"300"), stream=True)
    assert (alias.ttft_ms, alias.ttft_asked) == (250, True)
    short = wishes((b"x-weir-deadline-ms", b"100"), stream=True)
    assert (short.ttft_ms, short.ttft_asked) == (100, False)
    beyond = wishes((b"x-weir-ttft-ms", b"5000"), (b"x-weir-deadline-ms", b"1000"), stream=True)
    assert beyond.ttft_ms == 1000


def test_an_answer_that_is_not_streamed_has_no_first_token() -> None:
    whole = wishes((b"x-weir-ttft-ms", b"300"), (b"x-weir-deadline-ms", b"900"))
    assert (whole.ttft_ms, whole.ttft_asked) == (900, False)


PATIENCE = [
    (b"wait=0", 0.0),
    (b"wait=10", 10.0),
    (b"WAIT=10", 10.0),
    (b"  wait = 10  ", 10.0),
    (b"wait\t=\t10", 10.0),
    (b'wait="10"', 10.0),
    (b"respond-async, wait=100", 100.0),
    (b"wait=100, respond-async", 100.0),
    (b"handling=lenient, wait=5, respond-async", 5.0),
    (b"wait=5; foo=bar", 5.0),
    (b'foo="a, wait=1", wait=7', 7.0),
    (b'foo="a\\", wait=1", wait=7', 7.0),
    (b"wait=1, wait=2", 1.0),
    (b",, wait=3,,", 3.0),
    (b"wait=999999999999999", 999_999_999_999_999.0),
    # no preference for a wait, or none that can be read: ignored
    (b"", None),
    (b"respond-async", None),
    (b"wait", None),
    (b"wait=", None),
    (b'wait=""', None),
    (b"wait=-1", None),
    (b"wait=+1", None),
    (b"wait=1.5", None),
    (b"wait=1e3", None),
    (b"wait=1s", None),
    (b"wait=nan", None),
    (b"wait=inf", None),
    (b"wait=1_0", None),
    ("wait=١٢".encode(), None),
    (b"wait=5 6", None),
    (b"wait 5", None),
    (b"wait=" + b"9" * 5000, None),
    (b"wait=soon, wait=2", None),  # only the first instance is looked at (RFC 7240, section 2)
    (b"await=5", None),
    (b"x-wait=5", None),
    (b"wait-for=5", None),
    (b"foo; wait=5", None),  # a parameter of foo
    (b'foo="wait=5"', None),
    (b'foo="a, wait=5', None),  # a string that is never closed
    (b'foo="a, wait=5\\', None),
    (b"\xff\xfe\x00", None),
]


@pytest.mark.parametrize(("value", "seconds"), PATIENCE)
def test_a_client_may_say_how_long_it_will_stand_in_line(value: bytes, seconds: float | None) -> None:
    assert wishes((b"prefer", value)).max_wait_s == seconds


def test_several_prefer_headers_are_one_list() -> None:
    assert wishes((b"prefer", b"respond-async"), (b"prefer", b"wait=4"), (b"prefer", b"wait=9")).max_wait_s == 4


CLASSES = [
    ([(b"x-weir-class", b"batch")], "batch"),
    ([(b"x-weir-class", b"  batch ")], "batch"),
    ([(b"x-llm-d-inference-objective", b"bulk")], "bulk"),
    ([(b"x-smg-priority", b"low")], "low"),
    ([(b"x-smg-priority", b"low"), (b"x-llm-d-inference-objective", b"bulk"), (b"x-weir-class", b"batch")], "batch"),
    ([(b"x-smg-priority", b"low"), (b"x-llm-d-inference-objective", b"bulk")], "bulk"),
    ([(b"x-weir-class", b"a"), (b"x-weir-class", b"b")], "a"),
    ([(b"x-weir-class", b"")], None),
    ([(b"x-weir-class", b"   ")], None),
    ([(b"x-weir-class", b"\xff\n")], "\xff"),
]


@pytest.mark.parametrize(("headers", "name"), CLASSES)
def test_a_class_is_taken_as_it_stands_ours_before_the_aliases(headers: list[tuple[bytes, bytes]], name: str) -> None:
    assert wishes(*headers).class_name == name


ATTEMPTS = [
    (b"0", 0), (b"1", 1), (b" 2 ", 2), (b"002", 2), (b"1000", 1000), (b"1001", 1000), (b"999999999", 1000),
    (b"", 0), (b"-1", 0), (b"1.5", 0), (b"true", 0), (b"nan", 0), (b"1_0", 0), ("٢".encode(), 0), (b"\xb2", 0),
    (b"9" * 10, 0), (b"9" * 5000, 0),
]  # fmt: skip


@pytest.mark.parametrize(("value", "attempt"), ATTEMPTS)
def test_the_attempt_is_what_the_client_counts_and_never_more_than_a_thousand(value: bytes, attempt: int) -> None:
    assert wishes((b"x-stainless-retry-count", value)).attempt == attempt


def test_all_wishes_may_be_said_together() -> None:
    said = wishes(
        (b"x-weir-deadline-ms", b"900"),
        (b"x-weir-ttft-ms", b"200"),
        (b"prefer", b"wait=1"),
        (b"x-weir-class", b"batch"),
        (b"x-stainless-retry-count", b"2"),
        stream=True,
    )
    assert said == RequestSLO(900, 200, True, 1.0, "batch", 2)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(FIELD_OF)), st.binary(max_size=40)), max_size=6),
    st.booleans(),
)
def test_no_header_whatever_gets_a_wish_out_of_its_bounds(headers: list[tuple[bytes, bytes]], stream: bool) -> None:
    said = outcome(headers, stream)
    if isinstance(said, BadInput):
        assert said.param in {name.decode() for name, _ in headers}
        return
    assert 0 < said.ttft_ms <= said.deadline_ms <= MAX_MS
    assert said.max_wait_s is None or 0 <= said.max_wait_s < inf
    assert 0 <= said.attempt <= 1000


def outcome(headers: list[tuple[bytes, bytes]], stream: bool) -> RequestSLO | BadInput:
    try:
        return wishes(*headers, stream=stream)
    except BadInput as refused:
        return refused


@given(st.lists(st.sampled_from([b"wait=1", b"wait", b'"', b"\\", b",", b";", b"=", b" ", b"a"]), max_size=400))
def test_a_preference_of_odd_parts_is_read_or_ignored(parts: list[bytes]) -> None:
    assert wishes((b"prefer", b"".join(parts))).max_wait_s in (None, 1.0)
