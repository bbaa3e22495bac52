"""What is published of people: what the router said, what is kept, the page and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from loadtests.report.result import Result, markdown, write
from loadtests.runs.people import __main__ as command
from loadtests.runs.people.page import figures, result
from loadtests.runs.people.playing import Played, Trouble, Wanted
from loadtests.runs.people.watching import QUERIES, Sample, Watching, from_prometheus, parse, rates

METRICS = """
# HELP weir_queue_depth requests that wait
weir_queue_depth{tenant="anna"} 3.0
weir_queue_depth{tenant="ben"} 1.0
weir_inflight 16.0
weir_degradation_level{class="default",pool="sim"} 2.0
weir_degradation_level{class="batch",pool="sim"} 1.0
weir_admission_total{decision="admit",tenant="anna"} 100.0
weir_admission_total{decision="degrade",tenant="anna"} 40.0
weir_admission_total{decision="yield",tenant="anna"} 7.0
weir_admission_total{decision="tenant_queue_full",tenant="ben"} 2.0
weir_degradation_total{reason="max_tokens"} 5.0
weir_degradation_total{reason="context"} 1.0
"""
SAMPLES = (
    Sample(0.0, waiting=0, level=0, refused=10, degraded=0),
    Sample(1.0, waiting=4, level=1, refused=30, degraded=5),
    Sample(3.0, waiting=2, level=2, refused=40, degraded=5),
)
BURST = Played(
    "burst", "Who is answered?", 160, 60.0, 1200, 900, 90, 250, 20, 20, 10, 400, 900, 1500, 1000.0,
    (Trouble(20.0, 30.0),), SAMPLES, "a machine",
)  # fmt: skip


def test_the_routers_own_word_is_read_off_its_metrics() -> None:
    assert parse(METRICS, 7.0) == Sample(7.0, waiting=4, level=2, refused=9, degraded=6)


def test_what_is_no_routers_page_is_told() -> None:
    with pytest.raises(ValueError, match="a router's metrics listener"):
        parse("up 1.0\n")


def test_looks_count_from_the_beginning_of_the_run_and_those_that_fail_are_counted() -> None:
    pages = iter([METRICS.encode(), b"nonsense", METRICS.encode()])
    watching = Watching("http://127.0.0.1:9000/metrics", lambda url: next(pages))
    for _ in range(3):
        watching.look()
    (first, second) = watching.since(0.0)
    assert first.at_s > 0
    assert watching.missed == 1
    assert watching.since(second.at_s + 1e6) == []


def test_a_prometheus_gives_the_same_samples() -> None:
    asked = []

    def read(url: str) -> bytes:
        query = parse_qs(urlsplit(url).query)
        asked.append(query["query"][0])
        values = [[1000, "1"], [1001, "2.5"]]
        return json.dumps({"data": {"result": [{"values": values}]}}).encode()

    found = from_prometheus("http://127.0.0.1:9090/", 1000.0, 1.0, read)
    assert [each.at_s for each in found] == [0.0, 1.0]
    assert found[1] == Sample(1.0, 2.5, 2.5, 2.5, 2.5)
    assert asked == list(QUERIES.values())
    with pytest.raises(ValueError, match="no series"):
        from_prometheus("http://127.0.0.1:9090", 1000.0, 1.0, lambda url: b'{"status": "error"}')


def test_a_counter_becomes_a_rate_by_the_time_that_really_passed() -> None:
    assert rates(list(SAMPLES), "refused") == [(1.0, 20.0), (3.0, 5.0)]
    again = [Sample(0.0, refused=50), Sample(1.0, refused=2)]
    assert rates(again, "refused") == [(1.0, 0.0)], "a router that began anew refused nobody before"


def test_a_row_has_what_people_met_and_what_the_router_said_of_it() -> None:
    told = {figure.name: figure.shown for figure in figures(BURST)}
    assert (told["Users"], told["RPS"], told["p99"]) == ("160", "20.0 /s", "1,500 ms")
    assert (told["Failure rate"], told["Refused"], told["Cut"]) == ("0.83 %", "20.83 %", "7.50 %")
    assert (told["Waiting, mean"], told["Waiting, max"]) == ("2", "4")
    assert (told["Rejections/s, max"], told["Cut answers/s, max"], told["Level, max"]) == ("20", "5", "2")


def test_a_router_that_told_nothing_leaves_its_columns_empty() -> None:
    silent = msgspec.structs.replace(BURST, samples=())
    assert page(result([silent])).split("`burst` ")[1].splitlines()[0].endswith("| - | - | - | - | - |")


def test_a_failure_misses_the_target_and_none_holds_it() -> None:
    well = msgspec.structs.replace(BURST, scenario="baseline", failed=0)
    told = result([well, BURST])
    assert [figure.held for figure in told.figures if figure.target is not None] == [True, False]
    text = page(told)
    assert "1 of 2 targets held." in text
    assert "| **0.83 %** |" in text


def page(told: Result) -> str:
    return markdown(told, command="make load-report", machine="a machine", name="locust")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which scenarios the command played; nothing is really played, and the code is always the same."""
    names: list[str] = []

    def play(name: str, *_: object) -> Played:
        if name == "retry_storm":
            raise command.NotPlayed("Locust could not")
        names.append(name)
        return msgspec.structs.replace(BURST, scenario=name, failed=0)

    monkeypatch.setattr(command, "play", play)
    monkeypatch.setattr(command, "code", lambda: "this code")
    return names


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    monkeypatch.setattr("sys.argv", ["people", "--out", str(folder), "--share", "0.1", *more])
    return command.main()


def test_what_was_played_is_kept_and_what_is_of_something_else_is_not(
    played: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path, monkeypatch) == 2, "the seventh could not be played"
    first = len(played)
    assert first > 3
    assert not (tmp_path / "locust.md").exists()
    two = ("--only", "baseline", "--only", "burst")
    assert asked(tmp_path, monkeypatch, *two) == 0
    assert len(played) == first
    assert "2 of 2 are kept from an earlier run." in capsys.readouterr().out
    assert (tmp_path / "locust.md").read_text(encoding="utf-8").count("| `burst` |") == 2
    assert asked(tmp_path, monkeypatch, *two, "--fresh") == 0
    assert len(played) == first + 2
    monkeypatch.setattr(command, "code", lambda: "other code")
    assert asked(tmp_path, monkeypatch, *two) == 0
    assert len(played) == first + 4
    assert "not used:" in capsys.readouterr().out


def test_locust_is_told_whom_to_load_and_nothing_that_was_not_asked_for() -> None:
    usual = Wanted("http://127.0.0.1:8000", "").command("burst", Path("there"))
    assert usual[usual.index("--scenario") + 1] == "burst"
    assert "--beyond-this-machine" not in usual
    assert "--keys" not in usual
    more = Wanted("https://example.org", "", keys="keys.txt", beyond=True).command("burst", Path("there"))
    assert {"--beyond-this-machine", "keys.txt"} <= {*more}


def test_the_picture_is_drawn_for_a_light_and_for_a_dark_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told = result([BURST, msgspec.structs.replace(BURST, scenario="slow_worker")])
    write(told, tmp_path / "locust", command="make load-report", machine="a machine")
    light, dark = ((tmp_path / name).read_text(encoding="utf-8") for name in ("locust.svg", "locust-dark.svg"))
    assert "queued requests" in light
    assert "rejections a second" in dark
    assert light != dark
    assert "locust-dark.svg" in (tmp_path / "locust.md").read_text(encoding="utf-8")
