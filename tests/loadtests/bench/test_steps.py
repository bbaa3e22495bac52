"""Every step that the bench counts stands in one area of its page."""

from __future__ import annotations

from loadtests.bench.steps import by_area, result
from loadtests.report.result import markdown


def test_every_step_stands_in_one_area_of_the_page() -> None:
    answers = {"router/telemetry/metrics.py": 30.0, "core/scheduler.py": 60.0, "odd.py": 10.0}
    core = "deciding: admission, fairness, estimates"
    assert by_area(answers) == {"metrics": 30.0, core: 60.0, "the rest": 10.0}
    whole = {"answers": answers, "refusals": {"core/scheduler.py": 50.0}}
    written = markdown(result(whole, {"answers": 90.0, "refusals": 45.0}), command="", machine="a machine")
    assert "| **total** | **100** | **50** |" in written
    assert "10.0% of the steps of answers and 10.0% of the steps of refusals" in written
