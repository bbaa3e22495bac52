"""The services of the stack: module, port, and settings, which travel in the environment only, as in a container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.cli.config import GOVERNOR_METRICS_OFFSET, METRICS_OFFSET, STORM_METRICS_OFFSET, LabSettings, reached_at
from services.cli.ports import Port


@dataclass(frozen=True, slots=True)
class ServicePart:
    name: str
    module: str
    host: str
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    note: str = ""  # shown beside the name
    loads_s: float = 0.0  # seconds to load before it must be ready
    readiness_url: str = ""  # readiness URL, if not on its own port

    @property
    def ready_url(self) -> str:
        return self.readiness_url or f"http://{self.host}:{self.port}/health/ready"


def worker_name(index: int, prefix: str = "worker") -> str:
    return f"{prefix}-{index}"


def workers(
    settings: LabSettings, placed: Sequence[str] = (), *, prefix: str = "worker", host: str = ""
) -> list[ServicePart]:
    """The workers of this machine. `placed`: the device of each. `host`: their address, if not `inner_host`."""
    listens = host or settings.inner_host
    return [
        worker(settings, worker_name(index, prefix), port, placed[index] if placed else "", listens)
        for index, port in enumerate(settings.worker_ports)
    ]


def worker(settings: LabSettings, name: str, port: int, device: str, host: str) -> ServicePart:
    part = _part(settings, name, "services.worker", "WORKER_PORT", port, host, WORKER_NAME=name)
    if not settings.loads_a_model:
        return part
    env = {**part.env, "ENGINE": settings.engine, "DEVICE": device, "MODEL_CACHE_DIR": str(settings.models)}
    return replace(part, env=env, note=f"{settings.model_id} on {device}", loads_s=settings.engine_start_s)


def retrieval(settings: LabSettings, postgres_url: str, redis_url: str) -> ServicePart:
    stores = {"POSTGRES_URL": postgres_url, "REDIS_URL": redis_url}
    port, host = settings.retrieval_port, settings.inner_host
    return _part(settings, "retrieval", "services.retrieval", "RETRIEVAL_PORT", port, host, **stores)


def router(settings: LabSettings) -> ServicePart:
    peers = {"RETRIEVAL_URL": settings.retrieval_url}
    if settings.tenants_file is None:
        peers["STORM_URL"] = settings.storm_url
    if settings.own_workers:
        peers["WORKERS"] = ",".join(settings.worker_urls)
    return _part(settings, "router", "services.router", "ROUTER_PORT", settings.router_port, settings.host, **peers)


def governor(settings: LabSettings, router_url: str) -> ServicePart:
    """By default in front of this router. It does not speak HTTP, so its readiness is on its metrics port."""
    variable, port, host = "GOVERNOR_PORT", settings.governor_port, settings.governor_host
    upstream = settings.governor_upstream_url or f"{router_url}/v1/completions"
    part = _part(settings, "governor", "services.governor", variable, port, host, GOVERNOR_UPSTREAM_URL=upstream)
    return replace(
        part, readiness_url=f"http://{settings.metrics_reach}:{port + metrics_offset(variable)}/health/ready"
    )


def storm(settings: LabSettings, redis_url: str) -> ServicePart:
    """The storm bench, with this stack's router, workers and cache as its targets."""
    metrics = f"http://{settings.metrics_reach}"
    slowed = [] if settings.loads_a_model else [f"{metrics}:{port + METRICS_OFFSET}" for port in settings.worker_ports]
    env = {
        "STORM_ROUTER_URL": settings.router_url,
        "STORM_METRICS_URL": f"{metrics}:{settings.router_port + METRICS_OFFSET}",
        "STORM_FAULT_URLS": ",".join(slowed) or "none",
        "REDIS_URL": redis_url,
    }
    if settings.own_workers:
        env["WORKERS"] = ",".join(settings.worker_urls)
    port, host = settings.storm_port, settings.inner_host
    return _part(settings, "storm", "loadtests.storm", "STORM_PORT", port, host, **env)


def metrics_offset(variable: str) -> int:
    """The distance of a service's metrics port from the port that this setting moves."""
    return {"GOVERNOR_PORT": GOVERNOR_METRICS_OFFSET, "STORM_PORT": STORM_METRICS_OFFSET}.get(variable, METRICS_OFFSET)


def _part(
    settings: LabSettings, name: str, module: str, variable: str, port: int, host: str, **env: str
) -> ServicePart:
    own = {
        "HOST": host,
        variable: str(port),
        "METRICS_HOST": settings.metrics_host,
        "METRICS_PORT": str(port + metrics_offset(variable)),
        **internal_token(settings),
    }
    return ServicePart(name, module, reached_at(host), port, {**env, **own})


def internal_token(settings: LabSettings) -> dict[str, str]:
    """INTERNAL_TOKEN for a child process; nothing where there is none."""
    token = settings.shared_token.decode("ascii")
    return {"INTERNAL_TOKEN": token} if token else {}


def ports(settings: LabSettings) -> Iterator[Port]:
    """Every port of the stack, with the setting that moves it."""
    if not settings.postgres_url:
        yield Port("PostgreSQL", "EMBEDDED_POSTGRES_PORT", "127.0.0.1", settings.embedded_postgres_port)
    if not settings.redis_url:
        yield Port("Valkey", "EMBEDDED_REDIS_PORT", "127.0.0.1", settings.embedded_redis_port)
    inner = settings.inner_host
    services = [
        ("retrieval", "RETRIEVAL_PORT", settings.retrieval_port, inner),
        ("router", "ROUTER_PORT", settings.router_port, settings.host),
        ("governor", "GOVERNOR_PORT", settings.governor_port, settings.governor_host),
    ]
    if settings.tenants_file is None:
        services.append(("storm", "STORM_PORT", settings.storm_port, inner))
    yield from worker_ports(settings, inner)
    for name, variable, number, host in services:
        yield from _own_and_metrics(settings, name, variable, number, host)


def worker_ports(settings: LabSettings, host: str) -> Iterator[Port]:
    for index, number in enumerate(settings.worker_ports):
        yield from _own_and_metrics(settings, worker_name(index), "WORKER_PORT", number, host)


def _own_and_metrics(settings: LabSettings, name: str, variable: str, number: int, host: str) -> Iterator[Port]:
    yield Port(name, variable, host, number)
    yield Port(f"{name}'s metrics", variable, settings.metrics_host, number + metrics_offset(variable))


def clashes(settings: LabSettings) -> list[str]:
    first: dict[int, Port] = {}
    found = []
    for port in ports(settings):
        other = first.setdefault(port.number, port)
        if other is not port:
            found.append(f"{port.number}: {other.name} ({other.setting}) and {port.name} ({port.setting})")
    return found
