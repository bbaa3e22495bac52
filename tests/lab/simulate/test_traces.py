"""Each format of recorded traffic, on a few lines of it; and what a replay makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.lab.errors import LabError
from services.lab.simulate.capacity import measure
from services.lab.simulate.plan import Plan
from services.lab.simulate.traces import FORMATS, Row, read
from tests.lab.simulate.worlds import scenario

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
CLIENTS = {"servegen": ("11", "14"), "burstgpt": ("GPT-4", "ChatGPT"), "vtc": ("a", "b")}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES[kind])
    first, second = CLIENTS.get(kind, ("", ""))
    rows = read(path, kind)
    assert [row[1:] for row in rows] == [(first, 4808, 10), (second, 3180, 8)]
    assert [row.at_s for row in rows] == pytest.approx([0.0, 0.25])


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("azure", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9,1\n", "request 1 is not of format azure"),
        ("servegen", "t_s,client,input_tokens,output_tokens\n1,a,2,3\n2,a,many,3\n", "request 2 is not of format"),
        ("servegen", "t_s,client,input_tokens,output_tokens\n1,a\n", "request 1 is not of format"),
        ("mooncake", '{"timestamp": 1}\n', "request 1 is not of format mooncake"),
        ("mooncake", "not json\n", "request 1 is not of format mooncake"),
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


# ---- replay


def replay(tmp_path: Path, until: float, **trace: Any) -> list[Row]:
    path = tmp_path / "trace.csv"
    path.write_text("t_s,client,input_tokens,output_tokens\n0,a,100,10\n1,b,200,20\n3,a,300,30\n")
    arrivals = {"kind": "trace", "path": str(path), "format": "servegen", **trace}
    world = scenario({"arrivals": arrivals})
    plan = Plan(world, measure(world).rates, seed=1)
    jobs = plan.until(until)
    return [Row(round(job.arrived_at, 6), job.tenant, job.prompt_tokens, job.natural_tokens) for job in jobs]


def test_a_replay_keeps_times_and_lengths_and_begins_again(tmp_path: Path) -> None:
    # Three requests in 3 s: the trace is taken to repeat after 4.5 s.
    assert [row.at_s for row in replay(tmp_path, 9.0)] == [0, 1, 3, 4.5, 5.5, 7.5]
    assert replay(tmp_path, 2.0) == [(0, "t0", 100, 10), (1, "t0", 200, 20)]


def test_a_replay_may_be_faster_longer_and_from_the_middle(tmp_path: Path) -> None:
    assert replay(tmp_path, 1.6, time_scale=2, token_scale=1.5, repeat=False) == [
        (0, "t0", 150, 15),
        (0.5, "t0", 300, 30),
        (1.5, "t0", 450, 45),
    ]
    assert [row.at_s for row in replay(tmp_path, 4.0, start_s=1, repeat=False)] == [0, 2]


def test_each_client_of_a_trace_can_be_a_tenant(tmp_path: Path) -> None:
    assert [row.client for row in replay(tmp_path, 4.0, by_client=True)] == ["t0-a", "t0-b", "t0-a"]


def test_a_replay_at_a_load_is_as_fast_as_that_takes(tmp_path: Path) -> None:
    # Four slots; a request takes 20 ms to read and 20 ms to write on average: 100 a second at most.
    rows = replay(tmp_path, 10.0, load=0.5)
    assert len(rows) / 10 == pytest.approx(50, rel=0.02)
