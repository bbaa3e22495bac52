"""The nodes of a scenario on one network: router, workers, governor, and retrieval with its stores."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

from loadtests.cluster.loop import SimLoop, Simulation
from loadtests.cluster.node import Node
from loadtests.cluster.stores import Stores
from loadtests.faults.evil.talk import Talk
from loadtests.faults.evil.tricks import ROWS
from loadtests.faults.evil.worker import EvilWorker, Trick, honest
from loadtests.judging.nonces import NONCE
from loadtests.world.exchange import WorldExchange
from loadtests.world.governorplan import LINE_BYTES, TOTAL_BYTES
from loadtests.world.scenario import Scenario, WorkerSpec
from services.contracts.generate import GenerateRequest
from services.governor import app as governor_app
from services.governor.config import GovernorSettings
from services.retrieval.config import RetrievalSettings
from services.router import app as router_app
from services.router.config import RouterSettings
from services.router.serving.pipeline import Pipeline
from services.runtime.log import Log
from services.runtime.serve import Process
from services.worker import app as worker_app
from services.worker.config import WorkerSettings

ROUTER_PORT, ROUTER_METRICS_PORT = 8000, 9000
RETRIEVAL = ("10.0.0.3", 8001)
GOVERNOR = ("10.0.0.2", 7777)
GOVERNOR_METRICS = ("10.0.0.2", 9007)
WORKER_PORT = 8010
TOKEN = "a-token-of-this-world-alone"
MODEL = "weir-sim"
BOOK = ["The mill below the dam grinds barley slowly.", "A weir holds the river at its level."]
WORD = re.compile(NONCE.pattern.decode())
TRICKS = tuple(row.act for row in ROWS if "weir" in row.kinds)

Executed = Callable[[str, str, str], None]
"""(worker, nonce, what): a worker received a request or finished its answer."""


def router_address(number: int) -> str:
    return f"10.0.4.{number}" if number else "10.0.0.1"


def worker_address(number: int) -> str:
    return f"10.0.1.{number + 1}"


@cache
def isolated(kind: type[Any]) -> type[Any]:
    """A settings class that reads only given values and defaults, not the environment or files."""

    class Isolated(kind):  # type: ignore[misc]
        @classmethod
        def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, **sources: Any) -> Any:
            return (init_settings,)

    return Isolated


class EvilNode:
    """The byzantine worker on its own host: a third of its answers are right, the rest are tricks."""

    def __init__(
        self, simulation: Simulation, name: str, address: str, spec: WorkerSpec, seed: int, executed: Executed
    ) -> None:
        self.simulation, self.name, self.address = simulation, name, address
        self.loop: SimLoop | None = None
        self._executed = executed
        self._rng = Random(f"evil {seed}")
        self.reformed = False
        """Its fault is over: all answers are right."""
        self.worker = EvilWorker("weir", self._choose, model=MODEL, slots=spec.slots)

    def start(self) -> None:
        self.loop = SimLoop(self.simulation, self.name, self.address)
        self.loop.set_exception_handler(lambda loop, context: None)  # its errors are intended
        self.loop.create_task(self.worker.start(WORKER_PORT))

    def reform(self) -> None:
        self.reformed = True

    def _choose(self, talk: Talk) -> Trick:
        self._executed(self.name, talk.nonce, "received")
        return honest if self.reformed or self._rng.random() < 0.33 else self._rng.choice(TRICKS)


class System:
    """All nodes of a scenario. `on_line` and `on_error` as in `Node`; workers call `executed`."""

    def __init__(
        self,
        simulation: Simulation,
        scenario: Scenario,
        *,
        on_line: Callable[[str, int, bytes], None],
        on_error: Callable[[str, str], None],
        executed: Executed,
    ) -> None:
        self.simulation = simulation
        self.scenario = scenario
        self._executed = executed
        node = partial(Node, simulation, seed=str(scenario.seed), on_line=on_line, on_error=on_error)
        self.exchange: WorldExchange = WorldExchange()
        self.routers: list[Node] = [
            node(f"router-{number}" if number else "router", router_address(number), partial(self._router, number))
            for number in range(scenario.routers)
        ]
        self.governor: Node = node("governor", GOVERNOR[0], self._governor)
        self.stores: Stores = Stores(simulation)
        for number in range(scenario.tenants):
            self.stores.fill(f"tenant-{number}", {f"mill-{number}.md": BOOK, "river.md": BOOK[:1]})
        self.retrieval: Node = node("retrieval", RETRIEVAL[0], self._retrieval)
        self.workers: list[Node] = []
        self.evil: list[EvilNode] = []
        for number, spec in enumerate(scenario.workers):
            name, address = f"worker-{number}", worker_address(number)
            if spec.evil:
                self.evil.append(EvilNode(simulation, name, address, spec, scenario.seed, executed))
            else:
                self.workers.append(node(name, address, partial(self._worker, name, spec)))

    @property
    def nodes(self) -> list[Node]:
        """The nodes that can be killed and started."""
        retrieval = [self.retrieval] if self.scenario.retrieval else []
        return [*self.routers, self.governor, *retrieval, *self.workers]

    def start(self) -> None:
        for evil in self.evil:
            evil.start()
        self.stores.start_cache()
        for node in reversed(self.nodes):
            node.start()

    def pipelines(self) -> list[Pipeline | None]:
        """Of each router; None while it does not run."""
        found = [router.inside for router in self.routers]
        return [inside if isinstance(inside, Pipeline) else None for inside in found]

    def _router(self, number: int, *, rng: Random, log: Log) -> Process:
        scenario = self.scenario
        several = {"exchange_url": "redis://exchange", "router_name": f"router-{number}"}
        workers = [f"http://{worker_address(number)}:{WORKER_PORT}" for number in range(len(scenario.workers))]
        settings = isolated(RouterSettings)(
            host="0.0.0.0",
            lab_network=True,
            published_address="127.0.0.1",
            metrics_host="0.0.0.0",
            internal_token=TOKEN,
            workers=",".join(workers),
            retrieval_url=f"http://{RETRIEVAL[0]}:{RETRIEVAL[1]}",
            max_inflight=scenario.max_inflight,
            max_queue_size=scenario.max_queue,
            tenant_queue_size=min(scenario.tenant_queue, scenario.max_queue),
            probe_interval_s=0.5,
            max_source_share=1.0,
            drain_timeout_s=2 * scenario.deadline_s,
            **(several if scenario.routers > 1 else {}),
        )
        return router_app.build(settings, rng=rng, log=log, stores=self.exchange)

    def _retrieval(self, *, rng: Random, log: Log) -> Process:
        settings = isolated(RetrievalSettings)(
            host="0.0.0.0", internal_token=TOKEN, cache_key_secret="a-secret-of-this-world", **self.stores.urls
        )
        return self.stores.retrieval(settings, rng=rng, log=log)

    def _governor(self, *, rng: Random, log: Log) -> Process:
        plan = self.scenario.governor
        settings = isolated(GovernorSettings)(
            host="0.0.0.0",
            metrics_host="0.0.0.0",
            internal_token=TOKEN,
            governor_tokens=TOKEN,
            governor_max_inflight=plan.cap,
            governor_backend="http" if plan.router else "stub",
            governor_stub_ms=plan.job_s * 1000,
            governor_upstream_url=f"http://{router_address(0)}:{ROUTER_PORT}/v1/completions",
            governor_line_bytes=LINE_BYTES,
            governor_connection_bytes=TOTAL_BYTES,
            governor_total_bytes=TOTAL_BYTES,
            http_timeout_s=self.scenario.deadline_s,
            max_connections=plan.connections,
            max_source_share=1.0,
            drain_timeout_s=2 * self.scenario.deadline_s,
        )
        return governor_app.build(settings, rng=rng, log=log)

    def _worker(self, name: str, spec: WorkerSpec, *, rng: Random, log: Log) -> Process:
        settings = isolated(WorkerSettings)(
            host="0.0.0.0",
            worker_name=name,
            worker_port=WORKER_PORT,
            internal_token=TOKEN,
            max_batch_size=spec.slots,
            worker_queue_size=spec.queue,
            sim_step_ms=spec.step_ms,
            sim_step_per_sequence_ms=spec.per_sequence_ms,
            sim_jitter=0.1,
            **({} if spec.prefill_ms is None else {"sim_prefill_ms_per_token": spec.prefill_ms}),
            drain_timeout_s=self.scenario.deadline_s,
        )
        process = worker_app.build(settings, rng=rng, log=log)
        self._listen_in(name, process)
        return process

    def _listen_in(self, name: str, process: Process) -> None:
        """Report the questions that this worker's engine gets."""
        host: Any = process.inside.executor  # type: ignore[attr-defined]
        prepare = host.prepare

        async def noted(request: GenerateRequest) -> Any:
            found = WORD.search(request.prompt or request.messages[-1].content)  # type: ignore[index]
            if found is not None:
                self._executed(name, found[0], "received")
            return await prepare(request)

        host.prepare = noted
