"""A siege: what the attackers send, and what is judged."""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from loadtests.load.figures import figures
from loadtests.load.ledger import ON_TIME, Ledger
from loadtests.load.ledger import Row as Asked
from loadtests.report.record import Record
from loadtests.report.result import markdown
from loadtests.runs.judged import has_held
from loadtests.runs.siege import run as running
from loadtests.runs.siege.attackers import Allowance, Counts, latest
from loadtests.runs.siege.attacks import ATTACKS, BY_NAME, FEW_SOURCES
from loadtests.runs.siege.judging import CLIENTS, NEWCOMER, POOLED, Clients, Row, clients_of, judge, result
from loadtests.runs.siege.run import SETTLE_S, WORDS, Wanted, late, plan
from tests.virtual import run as in_virtual_time

MANY = 1000


def measured(latency_s: float = 0.1, refused: int = 0) -> dict[str, Clients]:
    """Requests of both kinds of clients, answered after so long; of the newcomers', so many are refused."""
    wanted, ledger = plan(per_s=100, seconds=10), Ledger()
    for number in range(MANY):
        for tenant in CLIENTS:
            row = Asked(number, tenant, SETTLE_S + number / MANY, 1000)
            row.sent_s = row.last_sent_s = row.intended_s
            row.end_s = row.intended_s + latency_s
            ledger.enter(row)
            ledger.close(row, "refused:yield" if tenant == NEWCOMER and number < refused else ON_TIME)
    return {name: clients_of(share) for name, share in figures(wanted, ledger).tenants.items()}


CALM = Row(clients=measured(), memory_mb=[90, 50, 50], per_s=100)


def missed(name: str, **found: object) -> list[str]:
    row = replace(Row(name, clients=measured(), memory_mb=[60]), **found)
    return [figure.name for figure in judge([CALM, row])[name] if figure.held is False]


def page_of(*rows: Row) -> str:
    return markdown(result(rows, seconds=60, **WORDS), command="make siege", machine="a machine")


def test_a_row_like_the_undisturbed_one_holds_every_target() -> None:
    assert missed("idle") == []
    assert has_held(result([CALM], seconds=60, **WORDS))


def test_memory_is_held_against_the_undisturbed_second_half() -> None:
    assert missed("idle", memory_mb=[50, 199, 60]) == []
    assert missed("idle", memory_mb=[50, 201, 60]) == ["memory"]


def test_one_refusal_misses_the_target_and_so_does_a_slow_hundredth() -> None:
    assert missed("idle", clients=measured(refused=1)) == ["new: success"]
    assert missed("idle", clients=measured(latency_s=0.151)) == ["pooled: p99 /", "new: p99 /"]


def test_new_connections_have_no_target_only_where_an_attack_takes_all_there_are() -> None:
    assert missed("idle_spread", clients=measured(refused=5)) == []
    assert [attack.name for attack in ATTACKS if attack.exhausts] == ["idle_spread"]


def test_a_row_that_could_not_be_played_is_no_row_that_held() -> None:
    broken = Row("flood", fault="StandError: router has ended\nits last words")
    assert not has_held(result([CALM, broken], seconds=60, **WORDS))
    assert "flood could not be played: StandError: router has ended." in page_of(CALM, broken)


def test_a_siege_that_was_interrupted_goes_on_after_its_finished_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capacity is measured once, and a row that could not be played is played again."""
    wanted, said, played = Wanted(("idle", "flood")), list[str](), list[tuple[str, float]]()

    async def play_row(row: Row, made: object, load: object, wanted: Wanted, say: object) -> None:
        played.append((row.name, row.per_s))
        row.clients, row.counts = measured(), Counts(wanted=5)
        row.fault = "OSError: gone" if row.name == "flood" and len(played) == 3 else ""

    async def nothing() -> str:
        return ""

    async def measure(made: object) -> object:
        return msgspec.defstruct("Capacity", [("per_s", float)])(123.0)

    monkeypatch.setattr(running, "play_row", play_row)
    monkeypatch.setattr(running, "stand", lambda *_: AsyncExitStack())
    monkeypatch.setattr(running, "pinned", nullcontext)
    monkeypatch.setattr(running, "_pin", lambda *_: None)
    monkeypatch.setattr(running.cpu, "warning", nothing)
    monkeypatch.setattr(running.capacity, "measure", measure)

    def again() -> list[Row]:
        record = Record(tmp_path / "siege.jsonl", {})
        return in_virtual_time(lambda: running.play(wanted, record, said.append))

    assert [row.fault for row in again()] == ["", "", "OSError: gone"]
    found = again()
    assert played == [("undisturbed", 123), ("idle", 123), ("flood", 123), ("flood", 123)]
    assert [(row.name, row.fault) for row in found] == [("undisturbed", ""), ("idle", ""), ("flood", "")]
    assert found[1].counts == Counts(wanted=5)
    assert found[1].clients == measured()


def test_a_client_that_waits_for_its_pool_before_the_attack_is_not_late() -> None:
    wanted, ledger = plan(per_s=100, seconds=10), Ledger()
    for intended_s, sent_s in ((0.5, 1.0), (SETTLE_S, SETTLE_S + 0.1), (SETTLE_S + 1, SETTLE_S + 1)):
        row = Asked(0, POOLED, intended_s, 1000)
        row.sent_s = sent_s
        ledger.enter(row)
    assert late(wanted, ledger) == 0.5
    assert missed("idle", late=0.5) == ["late"]


def test_the_page_marks_what_was_missed() -> None:
    page = page_of(CALM, Row("idle", clients=measured(), memory_mb=[300.0], counts=Counts(wanted=900)))
    assert "| memory | 40.0 MB | **250 MB** | ≤ 150 MB |" in page
    assert "(here 900)" in page
    assert "(capacity 100 answers/s)" in page


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
