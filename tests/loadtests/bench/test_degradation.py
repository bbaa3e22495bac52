"""The degradation bench: ladders that differ only in what they are said to, figures from a ledger, and a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loadtests.bench.degradation.bench import result
from loadtests.bench.degradation.corpus import Taken
from loadtests.bench.degradation.ladders import LADDERS, OFF, RETRIEVAL, WHOLE
from loadtests.bench.degradation.load import KNOWN, KNOWN_EVERY, Kept, Run, figures, question
from loadtests.bench.degradation.measure import LOADS, RETRIEVAL_LOADS, SLOW_LOAD, Cost, Measured
from loadtests.load.figures import quantiles
from loadtests.load.ledger import ON_TIME, Ledger, Row
from loadtests.load.plan import Plan, Step, Tenant
from loadtests.report.result import markdown, write
from services.core.ladder import LADDER

RUN = Run(
    offered_per_s=20.0, on_time_per_s=10.0, worth_per_s=9.0, with_passages_per_s=8.0, refused=0.5,
    expired=0.1, failed=0.0, answers_ms=quantiles([0.1]), levels={0: 0.25, 1: 0.75}, sources={"db": 0.8, "none": 0.2},
    passages=3.2, level_over_time=[(0.0, 0.0), (1.0, 1.0)], generator_late=0.0, late_answers=0,
)  # fmt: skip


def measured() -> Measured:
    better = replace(RUN, on_time_per_s=12.0, worth_per_s=9.9)
    return Measured(
        rows=50_000,
        taken=[Taken("chunks", "chunks", 50.0), Taken("weir_schema", "weir_schema", 0.01)],
        capacity_per_s=13.0,
        retrieval_per_s=120.0,
        costs=[Cost(0, 5, 1100, 1.0, 6.0, 4.0)],
        workers={(load, ladder): RUN if ladder == OFF else better for load in LOADS for ladder in LADDERS},
        slow={(SLOW_LOAD, ladder): RUN for ladder in (OFF, WHOLE)},
        retrieval={(load, ladder): RUN for load in RETRIEVAL_LOADS for ladder in (OFF, WHOLE)},
    )


def test_the_ladders_differ_in_what_they_are_said_to_and_in_nothing_else() -> None:
    assert LADDERS[OFF] == LADDER[:1]
    assert LADDERS[WHOLE] is LADDER
    for ours, whole in zip(LADDERS[RETRIEVAL], LADDER, strict=True):
        assert ours.max_tokens_share == 1
        assert replace(ours, max_tokens_share=whole.max_tokens_share) == whole


def test_all_questions_but_every_fifth_are_asked_once() -> None:
    asked = [question(number) for number in range(100_000, 101_000)]
    again = [question(number) for number in range(200_000, 201_000)]
    assert len(set(asked) & set(again)) == len(set(asked[::KNOWN_EVERY])) == KNOWN
    assert len(set(asked)) == 1000 - 1000 // KNOWN_EVERY + KNOWN


def row(number: int, at_s: float, ending: str, level: int = 0) -> Row:
    made = Row(number, "big", at_s, 1000.0)
    made.ending, made.level = ending, level
    made.end_s = at_s + 0.2
    return made


def test_figures_are_those_of_what_arrived_in_the_window() -> None:
    plan = Plan(seconds=10, tenants=(Tenant("big", (Step(0, 1.0),)),), warmup_s=2, cooldown_s=1, route="ask")
    ledger = Ledger()
    ledger.rows = [
        row(0, 1.0, ON_TIME, level=4),
        row(1, 3.0, ON_TIME),
        row(2, 4.0, ON_TIME, level=2),
        row(3, 5.0, "refused:deadline_expired"),
        row(4, 6.0, "failed:cut"),
        row(5, 9.5, ON_TIME, level=4),
    ]
    told = {0: ("skipped", 0), 1: ("db", 5), 2: ("none", 0), 5: ("skipped", 0)}
    run = figures(plan, ledger, told)
    assert (run.offered_per_s, run.on_time_per_s) == (4 / 7, 2 / 7)
    assert run.worth_per_s == pytest.approx((LADDER[0].worth + LADDER[2].worth) / 7)
    assert (run.refused, run.expired, run.failed, run.with_passages_per_s) == (0.25, 0.25, 0.25, 1 / 7)
    assert (run.levels, run.sources) == ({0: 0.5, 2: 0.5}, {"db": 0.5, "none": 0.5})
    assert run.passages == 2.5
    assert run.level_over_time == [(1.0, 4.0), (3.0, 0.0), (4.0, 2.0), (9.0, 4.0)]


def test_an_answer_tells_where_its_passages_came_from() -> None:
    kept = Kept()
    said = msgspec.json.encode({"text": "yes", "retrieval_source": "stale", "citations": [{"doc_id": "a"}]})
    for piece in (said[:10], said[10:]):
        kept.body(piece)
    assert kept.told() == ("stale", 1)


def test_the_page_says_what_was_gained_and_how_much_room_the_chunks_take() -> None:
    text = markdown(result(measured()), command="c", machine="a machine", name="p", drawn=[""])
    assert "- at 2 times capacity, degraded retrieval alone brings +20% answers on time, +10% in worth;" in text
    assert "| 1 | off | 20.0 | 10.0 | 9.0 | 8.0 | 50% | 10% |" in text
    assert "| chunks | chunks | 50.0 | 100 |" in text
    assert "weir_schema" not in text
    assert '<img src="p.svg" width="760" alt="Answers on time' in text
    assert "the mean level with the whole ladder is 0.8" in text


def test_the_answers_and_their_levels_are_drawn_for_light_and_dark_pages(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra `simulate`")
    names = [path.name for path in write(result(measured()), tmp_path / "p", command="c", machine="m")]
    assert names == ["p.md", "p.json", "p.svg", "p-dark.svg", "p-level.svg", "p-level-dark.svg"]
