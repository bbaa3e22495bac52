"""A service takes its chance, its log and its sockets from whoever builds and runs it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from loadtests.cluster.loop import SimLoop
from services.desk import app as desk
from services.desk.config import DeskSettings
from services.governor import app as governor
from services.governor.config import GovernorSettings
from services.retrieval import app as retrieval
from services.retrieval.config import RetrievalSettings
from services.router import app as router
from services.router.config import RouterSettings
from services.runtime.ids import ids_of
from services.runtime.log import Log
from services.runtime.serve import HttpListener, Process, running
from services.runtime.service import Service
from services.runtime.starting import PortTaken
from services.worker import app as worker
from services.worker.config import WorkerSettings
from tests.runtime.rig import build
from tests.virtual import run

BUILDS: dict[str, Callable[..., Process]] = {
    "router": lambda **client_id: router.build(RouterSettings(_env_file=None), **client_id),
    "governor": lambda **client_id: governor.build(GovernorSettings(_env_file=None), **client_id),
    "desk": lambda **client_id: desk.build(DeskSettings(_env_file=None), **client_id),
    "worker": lambda **client_id: worker.build(WorkerSettings(_env_file=None), **client_id),
    "retrieval": lambda **client_id: retrieval.build(RetrievalSettings(_env_file=None), Path("no-model"), **client_id),
}


def quiet_log() -> Log:
    return Log("test", stream=io.BytesIO(), threaded=False)


def ids(process: Process) -> list[str]:
    """Of what is answered, refused by the public listener, and refused by the metrics listener."""
    found = [process.new_id(8)]
    if isinstance(process.listener, HttpListener):
        service = process.listener.app
        assert isinstance(service, Service)
        found += [process.listener._shared.new_id(8), service._id_for(None), service._id_for(None)]
    return found


@pytest.mark.parametrize("service", BUILDS)
def test_services_built_with_the_same_seed_give_the_same_ids(service: str) -> None:
    one, same, other = (ids(BUILDS[service](rng=Random(seed), log=quiet_log())) for seed in (1, 1, 2))
    assert one == same
    assert not set(one) & set(other)


@pytest.mark.parametrize("service", BUILDS)
def test_services_built_without_a_generator_give_ids_of_their_own(service: str) -> None:
    one, other = (ids(BUILDS[service](log=quiet_log())) for _ in range(2))
    assert not set(one) & set(other)


@pytest.mark.parametrize("service", BUILDS)
def test_a_service_writes_into_the_log_that_it_is_given(service: str) -> None:
    log = quiet_log()
    assert BUILDS[service](log=log).log is log


def test_ids_are_of_so_many_bytes_whoever_makes_them() -> None:
    for new_id in (ids_of(None), ids_of(Random(7))):
        assert len(bytes.fromhex(new_id(6))) == 6
    assert ids_of(Random(7))(8) == ids_of(Random(7))(8)


class Plug:
    """What listens in a network that is none of the kernel's."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.closed = False

    def getsockname(self) -> tuple[str, int]:
        return ("10.0.0.1", self.port)

    def close(self) -> None:
        self.closed = True


class PluggedLoop(SimLoop):
    """A loop that serves plugs."""

    def __init__(self) -> None:
        super().__init__()
        self.served: list[Any] = []

    async def create_server(self, *args: Any, sock: Any = None, **kwargs: Any) -> Any:
        self.served.append(sock)
        return asyncio.Server(self, [], None, None, 0, None)  # type: ignore[arg-type]


def test_a_service_listens_where_it_is_told_by_whoever_runs_it() -> None:
    plugs: list[Plug] = []

    def bind(host: str, port: int, variable: str) -> Any:
        assert (host, port) == ("127.0.0.1", 0)
        plugs.append(Plug(81 + len(plugs)))
        return plugs[-1]

    with asyncio.Runner(loop_factory=PluggedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, PluggedLoop)

        async def main() -> None:
            process = build({})
            async with running(process, bind=bind):
                assert (process.bound_port, process.bound_metrics_port) == (81, 82)
                assert loop.served == plugs
            process.log.close()

        runner.run(main())


def test_a_metrics_port_that_is_taken_closes_the_first_plug() -> None:
    first = Plug(81)

    def bind(host: str, port: int, variable: str) -> Any:
        if variable == "METRICS_PORT":
            raise PortTaken("taken")
        return first

    async def main() -> None:
        process = build({})
        with pytest.raises(PortTaken):
            async with running(process, bind=bind):
                pass
        process.log.close()

    run(main())
    assert first.closed
