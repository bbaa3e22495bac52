"""workers.example.yaml works as it stands, and says what the documents say."""

from __future__ import annotations

import re
from pathlib import Path

from services.router.workers.workersfile import read

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "workers.example.yaml"


def test_the_example_has_no_fault_and_shows_every_kind_of_worker() -> None:
    specs = read(EXAMPLE)
    assert {spec.kind for spec in specs} == {"weir", "openai"}
    assert {type(spec.slots) for spec in specs} == {type(None), int, str}
    assert all(spec.lookahead is None for spec in specs)


def test_a_servers_slots_are_what_its_command_batches_at_once() -> None:
    """The commands stand beside the entries: (--max-num-seqs | --max-running-requests) N, --port P."""
    commands = re.findall(r"--max-\S+ (\d+) --port (\d+)", EXAMPLE.read_text(encoding="utf-8"))
    slots = {re.findall(r":(\d+)/v1", spec.url)[0]: spec.slots for spec in read(EXAMPLE) if isinstance(spec.slots, int)}
    assert {port: int(most) for most, port in commands} == slots
    assert len(commands) == 2
