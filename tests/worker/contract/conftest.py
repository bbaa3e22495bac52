"""Every test of this folder, of the simulated engine. Engines that need more keep it in `tests/real/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.worker.contract.engines import ENGINES, EXAMPLES, Make, Sizes
from tests.worker.contract.watched import Watched

Watch = Callable[..., Watched]


@pytest.fixture(scope="session")
def name() -> str:
    """Of the engine that is tested."""
    return "simulated"


@pytest.fixture(scope="session")
def make(name: str, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes engines of one kind."""
    return ENGINES[name](tmp_path_factory.mktemp(name))


@pytest.fixture(scope="session")
def examples(name: str) -> int:
    """How many examples of a property to try."""
    return EXAMPLES[name]


@pytest.fixture
def watch(make: Make) -> Iterator[Watch]:
    """Makes engines that are watched at each step, and closes them."""
    made: list[Watched] = []

    def watched(**sizes: int) -> Watched:
        made.append(Watched(make, Sizes(**sizes)))
        return made[-1]

    yield watched
    for one in made:
        one.engine.close()
