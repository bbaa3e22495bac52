"""Each format of recorded traffic, on a few lines of it; and parts of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.load import traces
from loadtests.load.traces import FORMATS, Part, Row, kind_of, read, replayed
from services.cli.errors import LabError

SAMPLES = {
    "azure": """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.2299600,3180,8
""",
    "servegen": """t_s,client,input_tokens,output_tokens
10.25,14,3180,8
10.0,11,4808,10
""",
    "burstgpt": """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,1,0.2,GPT-4,4808,10,4818,API log
5.25,2,0.3,ChatGPT,3180,8,3188,Conversation log
""",
    "bailian": """{"chat_id": 1, "timestamp": 61.5, "input_length": 4808, "output_length": 10, "type": "text"}
{"chat_id": 2, "timestamp": 61.75, "input_length": 3180, "output_length": 8, "type": "search"}
""",
    "mooncake": """{"timestamp": 1000, "input_length": 4808, "output_length": 10, "hash_ids": [1, 2]}

{"timestamp": 1250, "input_length": 3180, "output_length": 8, "hash_ids": [1, 3]}
""",
    "vtc": """req_time,client,prompt_len,output_len
0.5,a,4808,10
0.75,b,3180,8
""",
    "splitwise": """arrived_at,num_prefill_tokens,num_decode_tokens
0.0,4808,10
0.25,3180,8
""",
}
CLIENTS = {"servegen": ("11", "14"), "burstgpt": ("GPT-4", "ChatGPT"), "vtc": ("a", "b"), "bailian": ("text", "search")}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES[kind])
    first, second = CLIENTS.get(kind, ("", ""))
    rows = read(path, kind).rows
    assert [row[1:] for row in rows] == [(first, 4808, 10), (second, 3180, 8)]
    assert [row.at_s for row in rows] == pytest.approx([0.0, 0.25])
    assert kind_of(path) == kind
    assert read(path).rows == rows


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("azure", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9,1\n", "request 1 is not of format azure"),
        ("servegen", "t_s,client,input_tokens,output_tokens\n1,a,2,3\n2,a,many,3\n", "request 2 is not of format"),
        ("servegen", "t_s,client,input_tokens,output_tokens\n1,a\n", "request 1 is not of format"),
        ("mooncake", '{"timestamp": 1}\n', "request 1 is not of format mooncake"),
        ("mooncake", "not json\n", "request 1 is not of format mooncake"),
        ("mooncake", "[1, 2, 3]\n", "request 1 is not of format mooncake"),
        ("vtc", "", "no requests"),
        ("vtc", "req_time,client,prompt_len,output_len\n0,a,-5,1\n", "tokens below 0"),
    ],
)
def test_a_trace_of_another_format_is_a_fault_that_names_the_request(
    kind: Any, text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(LabError, match=says):
        read(path, kind)


def written(tmp_path: Path, *at_s: float) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("req_time,client,prompt_len,output_len\n" + "".join(f"{at},a,2,3\n" for at in at_s))
    return path


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.4799600"),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.509930+00:00"),
        ("2024-05-10 00:00:00+00:00", "2024-05-10 00:00:00.500000+00:00"),
        ("2024-05-10 00:00:00.1239+00:00", "2024-05-10 02:00:00.6239+02:00"),
    ],
    ids=["of 2023, seven digits and no zone", "of 2024, six digits and a zone", "no fraction", "two zones"],
)
def test_the_moments_of_both_azure_traces_are_read(first: str, second: str, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},1,2\n{second},3,4\n")
    assert [row.at_s for row in read(path, "azure").rows] == pytest.approx([0.0, 0.5], abs=1e-5)


def test_an_answer_that_the_recorded_service_failed_is_asked_for_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,7,0,7,API log\n")
    assert read(path).rows == (Row(0.0, "GPT-4", 7, 1),)


@pytest.mark.parametrize("text", ["", "when,what\n1,2\n", '{"when": 1}\n', "{not json\n"])
def test_a_file_of_no_known_format_is_told_which_are(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(LabError, match="azure, servegen"):
        read(path)


def test_a_file_that_is_not_there_or_no_text_is_a_fault_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="No such file"):
        read(tmp_path / "nowhere.csv")
    path = tmp_path / "trace"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LabError, match="not text"):
        read(path)


def test_a_part_of_a_trace_counts_from_its_own_beginning(tmp_path: Path) -> None:
    path = written(tmp_path, 100, 101, 105, 110)
    assert [row.at_s for row in read(path, "vtc", start_s=1, length_s=9).rows] == [0, 4]
    assert [row.at_s for row in read(path, "vtc", start_s=4).rows] == [1, 6]
    with pytest.raises(LabError, match="none in this part"):
        read(path, "vtc", start_s=11)


def test_nothing_is_read_far_behind_the_part_that_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 1, 5, 5 + 2 * traces.DISORDER_S)
    path.write_text(path.read_text() + "never,a,2,3\n")
    assert len(read(path, "vtc", length_s=3).rows) == 2
    with pytest.raises(LabError, match="request 5"):
        read(path, "vtc")


@pytest.mark.parametrize(("start_s", "length_s"), [(0, 1e9), (0, 7), (2, 4), (3, 1e9)])
def test_rows_a_little_out_of_place_are_put_where_they_belong(start_s: float, length_s: float, tmp_path: Path) -> None:
    in_order = read(written(tmp_path, 10, 11, 12, 13, 14, 15, 16, 17, 18), "vtc", start_s, length_s)
    path = tmp_path / "elsewhere.csv"
    path.write_text(written(tmp_path, 12, 11, 10, 13, 18, 15, 14, 17, 16).read_text())
    assert read(path, "vtc", start_s, length_s) == in_order


def test_a_part_with_too_many_requests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_ROWS", 3)
    path = written(tmp_path, 0, 1, 2, 3, 500)
    with pytest.raises(LabError, match="take a shorter one"):
        read(path, "vtc")
    assert len(read(path, "vtc", start_s=499).rows) == 1


@pytest.mark.parametrize(
    ("at_s", "part", "period_s"),
    [
        ((0, 1, 3), {}, 4.5),
        ((0, 2, 4), {"start_s": 1}, 5),
        ((0,), {}, 1),
        ((0, 0), {}, 1),
        ((0, 1, 3, 50), {"length_s": 20}, 20),
        ((0, 1, 3, 500), {"length_s": 20}, 20),
        ((0, 1, 3), {"length_s": 3.5}, 3.5),
        ((0, 1, 3), {"length_s": 20}, 4.5),
    ],
    ids=[
        "a whole trace: one mean gap behind its last request", "its end: the same", "one request", "all at once",
        "a part: its length", "before a long silence: the same", "a part that ends in the last gap", "beyond the end",
    ],
)  # fmt: skip
def test_after_how_long_a_part_begins_again(
    at_s: tuple[float, ...], part: dict[str, float], period_s: float, tmp_path: Path
) -> None:
    assert read(written(tmp_path, *at_s), "vtc", **part).period_s == period_s


def test_a_part_is_replayed_at_its_speed_and_again() -> None:
    part = Part([Row(at, "", 1, 1) for at in (0, 1, 3)], 4.5)
    twice = replayed(part, 0.5, repeat=True)
    assert [next(twice)[0] for _ in range(5)] == [0, 2, 6, 9, 11]
    assert [at for at, _ in replayed(part, 2.0, repeat=False)] == [0, 0.5, 1.5]
