"""A recorded trace as tenants of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.load import recorded
from loadtests.load.arrivals import asks
from loadtests.load.plan import Plan
from loadtests.load.planfile import load, parse

HEADER = "t_s,client,input_tokens,output_tokens\n"
ROWS = "10,a,100,10\n11,b,200,20\n13,a,300,30\n"


def raw(path: Path | None, seconds: float = 4.0, others: dict[str, Any] | None = None, **trace: Any) -> dict[str, Any]:
    named = {} if path is None else {"path": str(path)}
    tenant = {"name": "t", "trace": {**named, **trace}, **(others or {})}
    return {"seconds": seconds, "warmup_s": 0, "cooldown_s": 0, "tenants": [tenant]}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + ROWS)
    return path


def sent(plan: Plan) -> list[tuple[float, str, int, int]]:
    return [(round(ask.at_s, 6), ask.tenant.name, ask.prompt_tokens, ask.answer_tokens) for ask in asks(plan)]


def test_a_trace_is_replayed_as_it_was_recorded(trace: Path) -> None:
    plan = parse(raw(trace))
    assert sent(plan) == [(0, "t", 100, 10), (1, "t", 200, 20), (3, "t", 300, 30)]
    assert plan.expected == 3


def test_a_trace_may_be_faster_and_its_texts_shorter(trace: Path) -> None:
    plan = parse(raw(trace, time_scale=2, token_scale=0.01, repeat=False))
    assert sent(plan) == [(0, "t", 1, 1), (0.5, "t", 2, 1), (1.5, "t", 3, 1)]
    assert [tokens for _, _, tokens, _ in sent(parse(raw(trace, token_scale=5, max_tokens=900)))] == [500, 900, 900]


def test_a_trace_that_is_over_begins_again_after_a_mean_gap(trace: Path) -> None:
    assert [at_s for at_s, *_ in sent(parse(raw(trace, seconds=9)))] == [0, 1, 3, 4.5, 5.5, 7.5]
    assert [at_s for at_s, *_ in sent(parse(raw(trace, seconds=9, repeat=False)))] == [0, 1, 3]


def test_a_part_of_a_trace_can_be_replayed(trace: Path) -> None:
    assert [at_s for at_s, *_ in sent(parse(raw(trace, start_s=1)))] == [0, 2]
    assert [at_s for at_s, *_ in sent(parse(raw(trace, start_s=1, length_s=1.5, seconds=4)))] == [0, 1.5, 3]


def test_a_run_that_is_shorter_than_its_trace_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{at},a,1,1\n" for at in (0, 1, 2, 3, 4, 40, 400)))
    assert [at_s for at_s, *_ in sent(parse(raw(path, seconds=20)))] == [0, 1, 2, 3, 4]
    assert [at_s for at_s, *_ in sent(parse(raw(path, seconds=25, time_scale=2)))] == [0, 0.5, 1, 1.5, 2, 20]


def test_a_replay_at_a_rate_is_as_fast_as_that_takes(trace: Path) -> None:
    plan = parse(raw(trace, seconds=60, per_s=20))
    assert plan.expected / 60 == pytest.approx(20, rel=0.01)
    first, second, third, *_ = (at_s for at_s, *_ in sent(plan))
    assert (third - first) / (second - first) == pytest.approx(3, rel=1e-3)


def test_each_client_of_a_trace_can_be_a_tenant_of_its_own(trace: Path) -> None:
    plan = parse(raw(trace, by_client=True, others={"deadline_ms": 300}))
    assert [name for _, name, *_ in sent(plan)] == ["t-a", "t-b", "t-a"]
    assert {tenant.deadline_ms for tenant in plan.tenants} == {300}
    assert {tenant.name for tenant in parse(raw(trace)).tenants} == {"t"}


def test_the_least_active_of_too_many_clients_share_a_tenant(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text(HEADER + "0,x,1,1\n0,gpt 3.5/a,1,1\n1,gpt 3.5/a,1,1\n1,y,1,1\n2,z,1,1\n2,z,1,1\n")
    plan = parse(raw(path, by_client=True, max_clients=2, repeat=False))
    assert {tenant.name: len(tenant.recorded) for tenant in plan.tenants} == {
        "t-gpt_3-5-a": 2,
        "t-z": 2,
        "t-others": 2,
    }


def test_a_trace_can_be_given_apart_from_its_plan(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("seconds = 7\n[[tenants]]\nname = 't'\ntrace = { format = 'azure' }\n")
    assert load(path, trace).expected == 5
    with pytest.raises(ValueError, match="a path is missing"):
        load(path)
    path.write_text("seconds = 7\n[[tenants]]\nname = 't'\ntrace = { path = 'trace.csv' }\n")
    assert load(path).expected == 5  # beside the plan
    path.write_text("seconds = 7\n[[tenants]]\nname = 't'\nper_s = 1\n")
    with pytest.raises(ValueError, match="no tenant of this plan replays"):
        load(path, trace)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"format": "saturn"}, "format"),
        ({"time_scale": 1, "per_s": 1}, "either"),
        ({"time_scale": 0}, "time_scale"),
        ({"per_s": 1e6}, "per_s"),
        ({"start_s": -1}, "start_s"),
        ({"length_s": 0}, "length_s"),
        ({"token_scale": 0}, "token_scale"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_clients": 0}, "max_clients"),
        ({"speed": 2}, "speed"),
        ({"load": 1}, "give per_s"),
        ({"format": "azure"}, "request 1 is not of format azure"),
        ({"start_s": 100}, "none in this part"),
        ({"time_scale": 4e4}, "busiest second"),
        ({"others": {"per_s": 1}}, "per_s: this comes from the trace"),
        ({"others": {"prompt_tokens": 1, "clients": 2}}, "clients, prompt_tokens: this comes from the trace"),
    ],
)
def test_a_replay_that_cannot_be_says_why(wrong: dict[str, Any], named: str, trace: Path) -> None:
    with pytest.raises(ValueError, match=named):
        parse(raw(trace, **wrong))


def test_a_replay_of_too_many_requests_stops_before_it_has_them_all(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "MAX_ASKS", 1000)
    with pytest.raises(ValueError, match="more than 1,000 requests"):
        parse(raw(trace, time_scale=1e6))


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"nowhere\.csv"):
        parse(raw(Path("nowhere.csv")))


def test_a_tenant_with_recorded_requests_does_not_print_them(trace: Path) -> None:
    (tenant,) = parse(raw(trace)).tenants
    assert "Recorded" not in repr(tenant)
