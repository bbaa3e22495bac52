"""What runs before the workers: Weir, Weir with mechanisms switched off, or another gateway.

Every subject has the same workers and gets the same bytes. The router's mechanisms are switched off as an operator does
it (`POST /admin/policy`). Each other gateway has a configuration in `configs/` that its users would consider fair.
`values` fills in what depends on the load, by one rule for all: a worker gets as many requests as it has slots, as many
again may wait, and no request waits longer than the service promises. Of several frontends each has its equal part.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from time import monotonic
from urllib.parse import urlsplit

from loadtests.cluster.processes import Process, free_ports, get, until_ready
from loadtests.cluster.sharing import routers_before
from loadtests.cluster.stand import Server, Shape, Stand, start_router
from loadtests.internal import headers
from loadtests.runs.matrix import environments

CONFIGS = Path(__file__).with_name("configs")
ALSO_IN = "/usr/sbin:/usr/local/sbin"  # where packages install it, and PATH may not look
LITELLM_KEY = "sk-bench-0f3c1e5b7a9d2468ace13579"  # LiteLLM rejects keys that are short or well known
READY_WITHIN_S = 150.0  # LiteLLM needs a dozen seconds of a core to start
MECHANISMS = ("admission", "fairness", "cancellation")
AT_REST_WITHIN_S = 10.0
LOOK_EVERY_S = 0.2
WITHIN_S = 5.0
WAIT_IN_SERVICES = 1.5  # time that must remain when a request leaves the queue, in service times


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The longest and the shortest deadline of the service, in milliseconds."""

    longest_ms: float
    shortest_ms: float


def values(made: Stand, deadlines: Deadlines, port: int, other_port: int) -> dict[str, str]:
    """The values that a configuration may name in `${}`; `other_port` is for health or metrics."""
    shape = replace(made.shape, slots=max(1, made.shape.slots // made.frontends))
    found = {
        "PORT": port,
        "HEALTH_PORT": other_port,
        "METRICS_PORT": other_port,
        "SLOTS": shape.slots,
        "ALL_SLOTS": shape.all_slots,
        "QUEUE_SIZE": shape.all_slots,
        "TENANT_LIMIT": shape.all_slots + shape.all_slots // 2,
        "ALL_TENANTS_QUEUE_SIZE": 2 * shape.all_slots,
        "QUEUE_MS": f"{queue_timeout_ms(made.shape, deadlines):.0f}",
        "LONGEST_S": max(1, round(deadlines.longest_ms / 1000)),
        "KEY": LITELLM_KEY,
        **{f"WORKER_{index}": worker.url for index, worker in enumerate(made.workers)},
    }
    return {name: str(value) for name, value in found.items()}


def queue_timeout_ms(shape: Shape, deadlines: Deadlines) -> float:
    """The longest wait, in milliseconds, that leaves the shortest deadline time for an answer."""
    return max(1.0, deadlines.shortest_ms - WAIT_IN_SERVICES * shape.service_s * 1000)


@dataclass(frozen=True, slots=True)
class Command:
    """How to run a gateway: its command line, environment, and the URL that answers once it is ready."""

    line: Sequence[str]
    ready_url: str
    env: Mapping[str, str] | None = None


Build = Callable[[Path, Mapping[str, str], Path], Command]
"""Makes a command from the program, the values, and a folder for files."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of every table.

    `off`: mechanisms of the router that are switched off. `cuts`: answers are cut if a scenario allows it. For another
    gateway: `program` finds its executable, `build` makes its command, `package` is its name for pip, `key` is its only
    key if it knows no tenants, and `warm_up_s` is the duration of a few requests before the load, for gateways that
    load parts of themselves late. Two processes that are not `light` leave no time for the rest of a small machine. For
    scenarios of several frontends only: `settings` of the routers, or one `single` router in their place.
    """

    name: str
    title: str
    about: str
    off: tuple[str, ...] = ()
    cuts: bool = True
    program: Callable[[], Path | None] | None = None
    build: Build | None = None
    package: str = ""
    key: str | None = None
    warm_up_s: float = 0.0
    light: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    single: bool = False

    @property
    def is_router(self) -> bool:
        return self.program is None

    def plays(self, *, asks: bool, may_be_cut: bool, several: bool) -> bool:
        """Whether the scenario applies: no other gateway answers from documents, `cuts` needs cuttable answers,
        mechanisms are switched off at one router only, and of several frontends each is light.
        """
        if asks and (self.off or not self.is_router):
            return False
        if self.off or not self.light if several else self.single or self.settings:
            return False
        return self.cuts or may_be_cut

    def missing(self) -> str:
        """Why it cannot be run here; empty if it can."""
        if self.program is None or self.program() is not None:
            return ""
        return f"{self.title} is not installed"

    @asynccontextmanager
    async def standing(
        self, made: Stand, tenants: Sequence[str], may_be_cut: frozenset[str], deadlines: Deadlines
    ) -> AsyncIterator[Stand]:
        """Runs it before the workers of a testbed, and stops it afterwards.

        If the testbed has a router already, that router is used, and has all mechanisms on again afterwards.
        Raises StandError or RuntimeError if it does not start.
        """
        if made.router is not None:
            async with self._switched(made):
                yield made
            return
        before_workers = replace(made, router=None, beside=[], frontends=1 if self.single else made.frontends)
        async with AsyncExitStack() as leaving:
            leaving.push_async_callback(_stop, before_workers)
            if not self.is_router:
                for _ in range(made.frontends):
                    await self._start(before_workers, deadlines)
            elif before_workers.frontends > 1:
                own = replace(before_workers, folder=Path(tempfile.mkdtemp(dir=made.folder)))
                routers = routers_before(own, tenants, made.frontends, self.settings)
                before_workers.router, *before_workers.beside = (await leaving.enter_async_context(routers)).routers
            else:
                await start_router(before_workers, tenants, may_be_cut=may_be_cut if self.cuts else frozenset())
            if self.is_router:
                await leaving.enter_async_context(self._switched(before_workers))
            yield before_workers

    @asynccontextmanager
    async def _switched(self, made: Stand) -> AsyncIterator[None]:
        await at_rest(made)
        await asyncio.to_thread(switch, made, self.off)
        try:
            yield
        finally:
            await asyncio.to_thread(switch, made, ())

    async def _start(self, made: Stand, deadlines: Deadlines) -> None:
        program = self.program() if self.program else None
        if program is None or self.build is None:
            raise RuntimeError(self.missing())
        port, other_port = free_ports(2)
        command = self.build(program, values(made, deadlines, port, other_port), made.folder)
        number = len(made.fronts)
        process = Process(f"gateway-{number}" if number else "gateway", command.line, command.env or {}, made.folder)
        server = Server(process, f"http://127.0.0.1:{port}")
        made.router, made.beside = (made.router or server), ([*made.beside, server] if number else [])
        process.start()
        await until_ready(process, command.ready_url, READY_WITHIN_S)


async def _stop(stand: Stand) -> None:
    for server in stand.fronts:
        await server.process.stop()


def switch(stand: Stand, off: Sequence[str]) -> None:
    """Switches these mechanisms off and the others on. Raises OSError if the router does not."""
    body = json.dumps({name: name not in off for name in MECHANISMS}).encode()
    request = urllib.request.Request(
        f"{admin_url(stand)}/admin/policy", body, {"content-type": "application/json", **headers()}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        answer.read()


async def at_rest(stand: Stand) -> None:
    """Waits up to AT_REST_WITHIN_S until no request waits or runs, so that no run starts with another's backlog."""
    end = monotonic() + AT_REST_WITHIN_S
    while monotonic() < end:
        state = json.loads(await asyncio.to_thread(get, f"{admin_url(stand)}/admin/state"))
        if not state["inflight"]["now"] and not state["in_line"]:
            return
        await asyncio.sleep(LOOK_EVERY_S)


def admin_url(stand: Stand) -> str:
    if stand.router is None:
        raise RuntimeError("this stand has no router")
    parts = urlsplit(stand.router.metrics_url)
    return f"{parts.scheme}://{parts.netloc}"


def haproxy() -> Path | None:
    found = shutil.which("haproxy") or shutil.which("haproxy", path=ALSO_IN)
    return None if found is None else Path(found)


def haproxy_version(path: Path) -> str:
    output = subprocess.run([str(path), "-v"], capture_output=True, text=True, check=False).stdout
    return " ".join(output.split()[:3]) or "HAProxy"


def haproxy_with(config: str) -> Build:
    """HAProxy reads its values from the environment; workers are given as ports."""

    def build(program: Path, given: Mapping[str, str], folder: Path) -> Command:
        ports = {name: str(urlsplit(url).port) for name, url in given.items() if name.startswith("WORKER_")}
        ready = f"http://127.0.0.1:{given['HEALTH_PORT']}/health/ready"
        return Command([str(program), "-db", "-f", str(CONFIGS / config)], ready, {**given, **ports})

    return build


def litellm(program: Path, given: Mapping[str, str], folder: Path) -> Command:
    """Sets LiteLLM's variables: `LITELLM_LOG=ERROR` as its documentation advises, and no download of prices."""
    file = folder / "litellm.yaml"
    file.write_text(filled("litellm.yaml", given), encoding="utf-8")
    line = [str(program), "--config", str(file), "--host", "127.0.0.1", "--port", given["PORT"], "--num_workers", "1"]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
    return Command(line, f"http://127.0.0.1:{given['PORT']}/health/readiness", env)


def router_with(config: str) -> Build:
    def build(program: Path, given: Mapping[str, str], folder: Path) -> Command:
        lines = (line.strip() for line in filled(config, given).splitlines())
        arguments = [line for line in lines if line and not line.startswith("#")]
        return Command([str(program), *arguments], f"http://127.0.0.1:{given['PORT']}/readiness")

    return build


def filled(config: str, given: Mapping[str, str]) -> str:
    """A configuration with its values filled in. Raises KeyError if one is missing."""
    return Template((CONFIGS / config).read_text(encoding="utf-8")).substitute(given)


WEIR = Subject("weir", "Weir", "the router with its default settings")
WITHOUT_CUTS = Subject("no_degradation", "no degradation", "the same router, but no answer may be cut", cuts=False)
SUBJECTS = (
    WEIR,
    WITHOUT_CUTS,
    Subject("no_admission", "no admission", "the same router without admission: no request is rejected for its "
            "deadline; fair queueing and cancellation are on", off=("admission",)),
    Subject("fifo", "bounded FIFO", "the same router with all three mechanisms off: one queue of at most 256, first "
            "in, first out", off=MECHANISMS),
    Subject("haproxy", "HAProxy", "`maxconn` is a worker's slots, and `timeout queue` is tuned for each scenario to "
            "its tightest deadline and the service time", program=haproxy,
            build=haproxy_with("haproxy.cfg")),
    Subject("haproxy_by_hand", "HAProxy by hand", "limits, order and rejections written for the specific load",
            program=haproxy, build=haproxy_with("haproxy_by_hand.cfg")),
    Subject("sglang-router", "sglang-router", "its concurrency limit and queue",
            program=environments.program("sglang-router"), build=router_with("sglang_router.args"),
            package="sglang-router"),
    Subject("vllm-router", "vllm-router", "its concurrency limit and queue",
            program=environments.program("vllm-router"), build=router_with("vllm_router.args"), package="vllm-router"),
    Subject("litellm", "LiteLLM", "one proxy process, warmed up before each load",
            program=environments.program("litellm"), build=litellm, package="litellm", key=LITELLM_KEY, warm_up_s=4.0,
            light=False),
    Subject("no_exchange", "no exchange", "the same routers without a store, so that none knows of the other",
            settings={"EXCHANGE_URL": ""}),
    Subject("one_router", "one router", "the same router once, for all tenants", single=True),
)  # fmt: skip
TITLES = {subject.name: subject.title for subject in SUBJECTS}


def versions() -> str:
    """The versions of the other gateways, from their programs or pins."""
    path = haproxy()
    fetched = [environments.versions(each.package) for each in SUBJECTS if each.package and not each.missing()]
    return ", ".join([*([haproxy_version(path)] if path else []), *fetched])
