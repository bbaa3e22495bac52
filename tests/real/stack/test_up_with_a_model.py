"""`weir up ENGINE=torch`: the whole stack with a model that is made here, offline."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.processes import runs
from tests.real.stack.test_up import Lab

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra `torch`"),
]


@pytest.fixture
def lab(tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Lab]:
    lab = Lab(tmp_path, wait_until)
    lab.env |= {"ENGINE": "torch", "DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    yield lab
    if lab.runs():
        lab.signal_group(signal.SIGKILL)
        lab.exit_code()


def test_a_real_model_answers_from_the_corpus_and_ctrl_c_leaves_nothing_of_it(lab: Lab) -> None:
    lab.start()
    assert "tiny on cpu" in lab.said()
    assert lab.said().index("ready     worker-0") < lab.said().index("starting  router")
    answer = lab.ask()
    assert (answer["source"], bool(answer["text"])) == ("tier1", True)
    assert "lock.md" in str(answer["citations"])
    listed = httpx2.get(f"{lab.router_url}/v1/models", trust_env=False).json()
    assert [model["id"] for model in listed["data"]] == ["weir-tiny"]
    examined = lab.command("doctor")
    assert examined.returncode == 0, examined.stdout
    assert "torch, 0 of 8 slots busy" in examined.stdout

    engines = [member for member in lab.members if runs(member, "services.worker.child")]
    assert len(engines) == 1
    lab.signal_group(signal.SIGINT)
    assert lab.exit_code() == 0
    lab.has_left_nothing()
    assert [path.name.split("-")[0] for path in (lab.folder / "data" / "models").iterdir()] == ["tiny"]
