"""Every test of this folder, once for each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.worker.contract.engines import ENGINES, Make, Sizes
from tests.worker.contract.watched import Watched

Watch = Callable[..., Watched]


@pytest.fixture(scope="session", params=sorted(ENGINES))
def make(request: pytest.FixtureRequest) -> Make:
    """Makes engines of one kind."""
    opened: Make = ENGINES[request.param]()
    return opened


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
