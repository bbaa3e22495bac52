"""A siege: what the attackers send, and what is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtests.load.figures import Figures, figures
from loadtests.load.ledger import ON_TIME, Ledger
from loadtests.load.ledger import Row as Asked
from loadtests.runs.siege import report
from loadtests.runs.siege.attackers import Allowance, Counts, latest
from loadtests.runs.siege.attacks import ATTACKS, BY_NAME, FEW_SOURCES
from loadtests.runs.siege.judging import CLIENTS, NEWCOMER, POOLED, Result, Row, judge
from loadtests.runs.siege.run import SETTLE_S, late, plan

MANY = 1000


def measured(latency_s: float = 0.1, refused: int = 0) -> Figures:
    """Requests of both kinds of clients, answered after so long; of the newcomers', so many are refused."""
    wanted, ledger = plan(per_s=100, seconds=10), Ledger()
    for number in range(MANY):
        for tenant in CLIENTS:
            row = Asked(number, tenant, SETTLE_S + number / MANY, 1000)
            row.sent_s = row.last_sent_s = row.intended_s
            row.end_s = row.intended_s + latency_s
            ledger.enter(row)
            ledger.close(row, "refused:yield" if tenant == NEWCOMER and number < refused else ON_TIME)
    return figures(wanted, ledger)


CALM = Row(None, measured(), memory_mb=[90, 50, 50])


def missed(name: str, **found: object) -> list[str]:
    row = replace(Row(BY_NAME[name], measured(), memory_mb=[60]), **found)
    return [figure.name for figure in judge([CALM, row])[1] if figure.held is False]


def test_a_row_like_the_undisturbed_one_holds_every_target() -> None:
    assert missed("idle") == []
    assert Result(60, 100, [CALM]).held


def test_memory_is_held_against_the_undisturbed_second_half() -> None:
    assert missed("idle", memory_mb=[50, 199, 60]) == []
    assert missed("idle", memory_mb=[50, 201, 60]) == ["memory"]


def test_one_refusal_misses_the_target_and_so_does_a_slow_hundredth() -> None:
    assert missed("idle", measured=measured(refused=1)) == ["new: success"]
    assert missed("idle", measured=measured(latency_s=0.151)) == ["pooled: p99 /", "new: p99 /"]


def test_new_connections_have_no_target_only_where_an_attack_takes_all_there_are() -> None:
    assert missed("idle_spread", measured=measured(refused=5)) == []
    assert [attack.name for attack in ATTACKS if attack.exhausts] == ["idle_spread"]


def test_a_row_that_could_not_be_played_is_no_row_that_held() -> None:
    result = Result(60, 100, [CALM, Row(BY_NAME["flood"], fault="StandError: router has ended\nits last words")])
    assert not result.held
    page = report.page(result, command="make siege", machine="a machine")
    assert "flood could not be played: StandError: router has ended." in page
    assert report.data(result)["rows"][1]["fault"].startswith("StandError")
    assert any("could not be played" in line for line in report.lines(result))


def test_a_client_that_waits_for_its_pool_before_the_attack_is_not_late() -> None:
    wanted, ledger = plan(per_s=100, seconds=10), Ledger()
    for intended_s, sent_s in ((0.5, 1.0), (SETTLE_S, SETTLE_S + 0.1), (SETTLE_S + 1, SETTLE_S + 1)):
        row = Asked(0, POOLED, intended_s, 1000)
        row.sent_s = sent_s
        ledger.enter(row)
    assert late(wanted, ledger) == 0.5
    assert missed("idle", late=0.5) == ["late"]


def test_the_page_marks_what_was_missed() -> None:
    result = Result(60, 100, [CALM, Row(BY_NAME["idle"], measured(), [300.0], counts=Counts(wanted=900))])
    page = report.page(result, command="make siege", machine="a machine")
    assert "| memory | 40.0 MB | **250 MB** | ≤ 150 MB |" in page
    assert "(here 900)" in page


def test_half_of_the_capacity_is_asked_for_once_the_pool_has_its_connections() -> None:
    wanted = plan(per_s=200, seconds=60)
    assert wanted.window == (SETTLE_S, SETTLE_S + 60)
    assert sum(tenant.steps[-1].per_s for tenant in wanted.tenants) == pytest.approx(100)
    assert [tenant.name for tenant in wanted.tenants] == [POOLED, NEWCOMER]


def test_the_attacks_are_those_of_the_target_and_their_bodies_are_never_complete() -> None:
    assert {name: BY_NAME[name].count for name in ("never_read", "slowloris", "idle", "flood", "bodies")} == {
        "never_read": 1000, "slowloris": 1000, "idle": 10_000, "flood": 100, "bodies": 100,
    }  # fmt: skip
    for name in ("bodies", "bodies_with_key"):
        head, body = BY_NAME[name].openings[0].data.split(b"\r\n\r\n", 1)
        assert b"content-length: 1048576" in head
        assert (b"authorization" in head) is (name == "bodies_with_key")
        assert len(body) == 1_048_576 - 64
    assert len(BY_NAME["flood"].repeats) == 14_000 * 18
    assert "127.0.0.1" not in FEW_SOURCES  # the honest tenant's own address


def test_the_last_whole_line_counts() -> None:
    assert latest("") == Counts()
    assert latest('{"wanted": 5, "cut": 1}\n{"wanted": 5, "cut": 2}\n{"wan') == Counts(wanted=5, cut=2)


def test_an_allowance_is_no_more_than_a_fifth_of_a_second() -> None:
    allowance = Allowance(50)
    allowance.refill(0.1)
    assert allowance.left == 5
    allowance.refill(60)
    assert allowance.left == 10
