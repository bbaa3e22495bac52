"""`weir storm`: what can be set from a terminal."""

from __future__ import annotations

import pytest

from loadtests.storm.command import parse_sets
from services.cli.errors import LabError


def test_what_is_set_is_a_name_and_a_number():
    assert parse_sets(["intensity=5", " seconds = 10.5"]) == {"intensity": 5.0, "seconds": 10.5}


@pytest.mark.parametrize("said", ["intensity", "intensity=", "intensity=much", "=5="])
def test_what_cannot_be_set_is_said_with_the_way_to_say_it(said: str):
    with pytest.raises(LabError, match="--set intensity=5"):
        parse_sets([said])
