"""Every fairness scenario, played in virtual time by the production scheduler."""

from __future__ import annotations

import pytest

from tests.core.fairness_scenarios import SCENARIOS
from tests.core.scenario import Run, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.title for scenario in SCENARIOS])
def test_fairness(scenario: Scenario):
    outcome = Run(scenario).play()
    assert outcome.charged == pytest.approx(outcome.used)
    faults = []
    for group, expect in scenario.expect.items():
        share, p95_s, most_s = outcome.share(group), outcome.wait_s(group, 0.95), outcome.wait_s(group, 1.0)
        if expect.share is not None and abs(share - expect.share) > expect.margin:
            faults.append(f"{group} got {share:.4f} of the work, not {expect.share:.4f} +- {expect.margin}")
        if p95_s > expect.p95_wait_s:
            faults.append(f"{group} waited {p95_s:.3f} s at p95, more than {expect.p95_wait_s}")
        if most_s > expect.most_wait_s:
            faults.append(f"{group} waited up to {most_s:.3f} s, more than {expect.most_wait_s}")
    assert not faults, "; ".join(faults)


def test_there_are_many_and_each_says_something_else():
    assert len(SCENARIOS) >= 45
    assert len({scenario.title for scenario in SCENARIOS}) == len(SCENARIOS)
    assert all(scenario.expect for scenario in SCENARIOS)
