"""What each gateway is given: every value filled in, and accepted by the gateway itself where it is installed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from loadtests.cluster.stand import Shape, tenants_yaml
from loadtests.runs.matrix.subjects import (
    CONFIGS,
    MECHANISMS,
    SUBJECTS,
    WEIR,
    Deadlines,
    Subject,
    queue_timeout_ms,
    values,
)
from tests.loadtests.runs.matrix.made import a_stand, case

DEADLINES = Deadlines(longest_ms=3000, shortest_ms=300)
OTHERS = [gateway for gateway in SUBJECTS if gateway.build is not None]


def command_of(gateway: Subject, folder: Path) -> tuple[list[str], dict[str, str]]:
    assert gateway.build is not None
    made = gateway.build(Path("/bin/the-program"), values(a_stand(folder), DEADLINES, 6001, 6002), folder)
    return list(made.line), dict(made.env or {})


@pytest.mark.parametrize("gateway", OTHERS, ids=lambda gateway: gateway.name)
def test_a_gateway_is_told_where_the_workers_are_and_nothing_is_left_to_fill_in(
    gateway: Subject, tmp_path: Path
) -> None:
    line, env = command_of(gateway, tmp_path)
    files = [Path(each).read_text() for each in line if each.endswith((".yaml", ".cfg")) and Path(each).exists()]
    told = " ".join([*line, *files, *env.values()])
    assert line[0] == "/bin/the-program"
    assert "5000" in told
    assert "5001" in told
    assert not set(re.findall(r"\$\{(\w+)\}", told)) - set(env)


def test_litellm_gives_a_worker_as_many_requests_as_it_has_slots_and_sends_none_twice(tmp_path: Path) -> None:
    gateway = next(each for each in OTHERS if each.name == "litellm")
    line, _ = command_of(gateway, tmp_path)
    told = yaml.safe_load(Path(line[line.index("--config") + 1]).read_text())
    deployments = [each["litellm_params"] for each in told["model_list"]]
    assert [urlsplit(each["api_base"]).port for each in deployments] == [5000, 5001]
    assert {each["max_parallel_requests"] for each in deployments} == {8}
    assert told["router_settings"]["num_retries"] == 0
    assert told["router_settings"]["timeout"] == 3
    assert told["general_settings"]["master_key"] == gateway.key


@pytest.mark.parametrize("name", ["vllm-router", "sglang-router"])
def test_a_router_has_as_many_at_work_as_there_are_slots_and_as_many_again_waiting(name: str, tmp_path: Path) -> None:
    line, _ = command_of(next(each for each in OTHERS if each.name == name), tmp_path)
    assert {"--max-concurrent-requests=16", "--queue-size=16", "--queue-timeout-secs=3"} <= set(line)
    assert not [each for each in line if each.startswith("#")]


def test_of_two_frontends_each_has_half_of_the_slots_and_waits_as_long(tmp_path: Path) -> None:
    one = a_stand(tmp_path)
    alone, half = (values(each, DEADLINES, 6001, 6002) for each in (one, replace(one, frontends=2)))
    assert {name: half[name] for name in ("SLOTS", "ALL_SLOTS", "QUEUE_SIZE")} == {
        "SLOTS": "4", "ALL_SLOTS": "8", "QUEUE_SIZE": "8"
    }  # fmt: skip
    assert half["QUEUE_MS"] == alone["QUEUE_MS"]


def test_a_step_reads_as_long_as_it_writes_so_long_prompts_take_twice_their_reading_time() -> None:
    reading = Shape(1, 2, 4.0, 1, prefill_ms=0.03, prompt_tokens=500)
    assert reading.service_s == pytest.approx(2 * 0.030)
    assert replace(reading, answer_tokens=10).service_s == pytest.approx(0.040 + 0.030)


def test_a_tenants_file_has_the_weights_that_are_not_one() -> None:
    one, other = yaml.safe_load(tenants_yaml(("a", "b"), weights={"a": 4.0}))["tenants"]
    assert (one["weight"], other.get("weight")) == (4, None)


def test_a_wait_leaves_the_shortest_deadline_time_for_an_answer() -> None:
    assert queue_timeout_ms(Shape(), DEADLINES) == pytest.approx(180)
    assert queue_timeout_ms(Shape(), Deadlines(100, 50)) >= 1  # 0 would be no limit


def test_every_configuration_says_where_it_comes_from() -> None:
    files = list(CONFIGS.iterdir())
    assert len(files) == len(OTHERS)
    assert all("Source" in file.read_text() for file in files)


def test_a_gateway_that_is_not_here_says_so() -> None:
    assert Subject("x", "X", "a gateway", program=lambda: None).missing() == "X is not installed"
    assert Subject("x", "X", "a gateway", program=lambda: Path("/bin/x")).missing() == ""
    assert SUBJECTS[0].missing() == ""


def test_the_first_is_weir_and_names_are_given_once() -> None:
    assert SUBJECTS[0] is WEIR
    assert len({subject.name for subject in SUBJECTS}) == len({subject.title for subject in SUBJECTS}) == len(SUBJECTS)
    assert {name for subject in SUBJECTS for name in subject.off} == {*MECHANISMS}
    assert all(subject.is_router for subject in SUBJECTS if subject.off)


def test_without_cuts_is_played_where_something_may_be_cut_and_only_the_router_has_documents() -> None:
    played = {
        name: [subject.name for subject in SUBJECTS if case(name).is_for(subject)]
        for name in ("baseline", "degradation", "degradation_documents", "two_frontends")
    }
    assert played["degradation"] == [each.name for each in SUBJECTS if each.name not in ("no_exchange", "one_router")]
    assert played["baseline"] == [name for name in played["degradation"] if name != "no_degradation"]
    assert played["two_frontends"] == [
        "weir", "haproxy", "haproxy_by_hand", "sglang-router", "vllm-router", "no_exchange", "one_router"
    ]  # fmt: skip
    assert played["degradation_documents"] == ["weir", "no_degradation"]
