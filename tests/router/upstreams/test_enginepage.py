"""Metrics pages of engines: the recorded ones are understood, and no page does harm. `pages/README.md` says whence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.router.upstreams.enginepage import ENGINES, MAX_COUNT, MAX_LINE_BYTES, EngineReport, read

PAGES = Path(__file__).with_name("pages")
VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.79e+09
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
"""


def vllm(**lines: str) -> bytes:
    """The page with other lines for some names, without those that are empty."""
    page = VLLM.decode()
    for name, line in lines.items():
        kept = [each for each in page.splitlines() if not each.startswith((f"vllm:{name}{{", f"vllm:{name} "))]
        page = "\n".join([*kept, line, ""])
    return page.encode()


def test_a_page_of_vllm_is_understood() -> None:
    assert read(VLLM) == EngineReport("vllm", 3, 2, kv_share=0.25, kv_tokens=1600, block_tokens=16, preemptions=7)


@pytest.mark.parametrize(
    ("file", "report"),
    [
        ("queue", EngineReport("vllm", 4, 3, 12 / 4095, kv_tokens=524288, block_tokens=128, preemptions=0)),
        ("preempted", EngineReport("vllm", 4, 0, 14 / 19, kv_tokens=2560, block_tokens=128, preemptions=2)),
    ],
)
def test_a_recorded_page_is_understood(file: str, report: EngineReport) -> None:
    seen = read((PAGES / f"vllm-0.32.0-{file}.txt").read_bytes())
    assert seen is not None
    assert seen.kv_share == pytest.approx(report.kv_share)
    assert replace(seen, kv_share=report.kv_share) == report


@pytest.mark.parametrize(
    ("file", "report"),
    [
        ("sglang.txt", EngineReport("sglang", 24, 3, kv_share=0.28, kv_tokens=161721, preemptions=2)),
        ("sglang-old.txt", EngineReport("sglang", 1, 0, kv_share=0.25, kv_tokens=161721, slots=4097)),
    ],
)
def test_a_page_that_a_project_documents_is_understood(file: str, report: EngineReport) -> None:
    assert read((PAGES / file).read_bytes()) == report


def test_an_older_name_of_the_used_share_is_understood() -> None:
    report = read(VLLM.replace(b"kv_cache_usage", b"gpu_cache_usage"))
    assert report is not None
    assert report.kv_share == 0.25


def test_the_size_of_the_cache_is_what_the_engine_says_and_only_else_computed() -> None:
    report = read(VLLM.replace(b'block_size="16"', b'block_size="16",kv_cache_size_tokens="900"'))
    assert report is not None
    assert report.kv_tokens == 900


def test_engines_behind_one_address_are_summed_and_devices_of_one_engine_are_not() -> None:
    second = VLLM.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.5")
    assert read(VLLM + second) == EngineReport(
        "vllm", 6, 4, kv_share=0.5, kv_tokens=3200, block_tokens=16, preemptions=14
    )
    assert read(VLLM + VLLM.replace(b'engine="0"', b'engine="0",tp_rank="1"')) == read(VLLM)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e300", "three", "", "0x10", "1_0", "3.0 4.0 5.0"])
def test_a_count_that_cannot_be_true_makes_the_page_none(value: str) -> None:
    assert read(vllm(num_requests_running=f"vllm:num_requests_running {value}")) is None


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("kv_cache_usage_perc", "vllm:kv_cache_usage_perc 1.5"),
        ("kv_cache_usage_perc", "vllm:kv_cache_usage_perc NaN"),
        ("kv_cache_usage_perc", "vllm:kv_cache_usage_perc -0.1"),
    ],
)
def test_a_share_that_cannot_be_true_counts_as_unsaid(name: str, line: str) -> None:
    report = read(vllm(**{name: line}))
    assert report is not None
    assert report.kv_share is None
    assert report.kv_tokens == 1600


@pytest.mark.parametrize(
    "labels",
    [
        'block_size="16"', 'num_gpu_blocks="100"', 'block_size="16",num_gpu_blocks="None"',
        'block_size="0",num_gpu_blocks="5"',
        'block_size="16",num_gpu_blocks="-5"', 'block_size="16",num_gpu_blocks="9999999999999999999999999"',
        'block_size="999999999",num_gpu_blocks="999999999999999"', "block_size=16,num_gpu_blocks=100", "",
    ],
)  # fmt: skip
def test_a_size_that_is_not_said_or_cannot_be_true_is_unknown(labels: str) -> None:
    report = read(vllm(cache_config_info=f"vllm:cache_config_info{{{labels}}} 1.0"))
    assert report is not None
    assert report.kv_tokens is None


@pytest.mark.parametrize(
    "page",
    [
        b"", b"\n", b"<html>not found</html>", b'{"detail":"Not Found"}', b"\xff\xfe\x00",
        b"# HELP a b\n# TYPE a gauge\na 1\n",
        b"vllm:num_requests_running 1\n",  # nothing said of its queue
        VLLM.replace(b"vllm:", b"xvllm:"), b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1",  # cut
    ],
)  # fmt: skip
def test_a_page_of_no_known_engine_is_none(page: bytes) -> None:
    assert read(page) is None


def test_a_line_that_is_too_long_is_not_read() -> None:
    long = f'vllm:num_requests_running{{a="{"x" * MAX_LINE_BYTES}"}} 1'
    assert read(vllm(num_requests_running=long)) is None


def test_a_label_may_hold_any_text() -> None:
    odd = VLLM.replace(b'model_name="tiny"', b'model_name="a } b, engine=\\"7\\", {c} # d"')
    report = read(odd)
    assert report is not None
    assert (report.running, report.waiting, report.preemptions) == (3, 2, 7)


NAMES = [name for names in ENGINES.values() for family in names for name in family]
SIGNS = [b"\n", b" ", b"{", b"}", b'"', b"=", b",", b"1", b"e", b"NaN", b"\\", b"\t", b"#", b"-"]
WORDS = st.one_of(st.sampled_from(NAMES), st.sampled_from(SIGNS), st.binary(max_size=4))


@given(st.lists(WORDS, max_size=80).map(b"".join))
def test_no_page_raises_and_what_is_understood_is_possible(page: bytes) -> None:
    for each in (page, VLLM + page, page + VLLM):
        report = read(each)
        if report is None:
            continue
        counts: list[Any] = [report.running, report.waiting, report.kv_tokens, report.preemptions, report.slots]
        assert all(isinstance(count, int) and 0 <= count <= 64 * MAX_COUNT for count in counts if count is not None)
        assert report.kv_share is None or 0 <= report.kv_share <= 1
        assert report.kv_tokens is None or report.kv_tokens > 0


@pytest.mark.parametrize(
    "piece",
    [
        b"vllm:num_requests_running{",
        b'vllm:num_requests_running{a="',
        b"vllm:num_requests_running{" + b'a="\\"",' * 1000,
        b"vllm:num_requests_running" + b" " * 8000,
        b"\nvllm:num_requests_running{" + b"}" * 8000,
        b"\nvllm:num_requests_running 1 " + b"1" * 8000 + b"x\n",
        b"\nvllm:cache_config_info{" + b'block_size="1",' * 500 + b"} 1\n",
        b"\nvllm:cache_config_info{" + b"\\" * 8000,
        b"\n" * 8000,
    ],
    ids=range(9),
)
def test_a_page_takes_time_by_its_length_and_no_more(piece: bytes) -> None:
    """A megabyte of the worst kind. Were it read a second time from each of its bytes, this would take hours."""
    page = piece * (1_048_576 // len(piece))
    read(page)
    read(VLLM + page)
