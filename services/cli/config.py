"""The lab's settings: ports, folders, workers, stores."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from services.runtime.addresses import is_loopback
from services.runtime.settings import ServiceSettings

METRICS_OFFSET = 1000  # between a service's port and its metrics port: 8000 and 9000, 8010 and 9010
GOVERNOR_METRICS_OFFSET = 1230  # of the governor: 7777 and 9007
STORM_METRICS_OFFSET = 918  # of the storm bench: 8090 and 9008
HIGHEST_PORT = 65535 - METRICS_OFFSET
EVERYWHERE = ("0.0.0.0", "::")
LOOPBACK = "127.0.0.1"
TOKEN_FILE = "internal-token"


class LabSettings(ServiceSettings):
    """What `weir up` starts and where. All other settings pass from the environment and .env to the services."""

    router_port: int = Field(
        8000, ge=1, le=HIGHEST_PORT, description="port of the router; its metrics port is 1000 higher"
    )
    retrieval_port: int = Field(
        8001, ge=1, le=HIGHEST_PORT, description="port of retrieval; its metrics port is 1000 higher"
    )
    governor_port: int = Field(
        7777,
        ge=1,
        le=65535 - GOVERNOR_METRICS_OFFSET,
        description="port of the governor; its metrics port is 1230 higher",
    )
    storm_port: int = Field(
        8090,
        ge=1,
        le=65535 - STORM_METRICS_OFFSET,
        description="port of the storm bench; its metrics port is 918 higher",
    )
    governor_tokens: SecretStr = Field(
        SecretStr(""), description="tokens of the governor's clients; if set, the governor listens on HOST"
    )
    governor_upstream_url: str = Field(
        "", description="URL that its payloads are posted to; empty for this stack's router"
    )
    worker_port: int = Field(8010, ge=1, le=HIGHEST_PORT, description="port of the first worker; the others follow")
    workers_count: int = Field(2, ge=1, le=64, description="workers to start")
    engine: Literal["simulated", "torch"] = Field("simulated", description="what computes the workers' answers")
    model_id: str = Field("tiny", min_length=1, description="model of the torch engine")
    device: str = Field(
        "auto", min_length=1, description="device of each worker; several, separated by commas, are used in turn"
    )
    model_cache_dir: str = Field("", description="folder of fetched models; empty for one in the data folder")
    engine_start_s: float = Field(600.0, gt=0, le=36_000, description="seconds a model may take to load")
    default_slo_ms: float = Field(
        30_000, gt=0, le=600_000, description="deadline of a request that sets none, milliseconds"
    )
    default_max_tokens: int = Field(
        0, ge=0, le=131_072, description="most completion tokens of a request that sets no limit; 0: no limit is set"
    )
    admission_safety_margin: float = Field(
        0.8, gt=0, le=1, description="share of a deadline into which the predicted wait and service must fit"
    )
    workers: str = Field("", description="addresses of your own workers, separated by commas; if set, none is started")
    tenants_file: Path | None = Field(
        None, description="YAML file of tenants and hashes of their keys; if set, there is no storm bench"
    )
    workers_file: Path | None = Field(None, description="YAML file of your own workers; if set, none is started")
    data_dir: Path = Field(Path(".weir"), description="folder of the embedded database, the logs and the pid file")
    seed_corpus: str = Field("docs", description="folder that `weir up` ingests at the start; `none` for no corpus")
    seed_tenant: str = Field("demo", min_length=1, max_length=128, description="tenant of that corpus")
    embedded_postgres_port: int = Field(8432, ge=1, le=65535, description="port of the embedded PostgreSQL")
    embedded_redis_port: int = Field(8379, ge=1, le=65535, description="port of the embedded Valkey")
    postgres_url: str = Field("", description="your own PostgreSQL; if set, none is embedded")
    redis_url: str = Field("", description="your own Redis or Valkey; if set, none is embedded")

    exchange_url: str = Field(
        "", description="Redis or Valkey through which several routers share their workers; empty: the router is alone"
    )

    @property
    def folder(self) -> Path:
        return self.data_dir.expanduser().absolute()

    @property
    def own_workers(self) -> bool:
        return not self.workers and self.workers_file is None

    @property
    def loads_a_model(self) -> bool:
        return self.engine != "simulated"

    @property
    def models(self) -> Path:
        """Where workers keep models. It may be large, so it can be outside the stack's data folder."""
        return Path(self.model_cache_dir).expanduser().absolute() if self.model_cache_dir else self.folder / "models"

    @property
    def worker_ports(self) -> list[int]:
        return [self.worker_port + index for index in range(self.workers_count)] if self.own_workers else []

    @property
    def worker_urls(self) -> list[str]:
        return [f"http://{reached_at(self.inner_host)}:{port}" for port in self.worker_ports]

    @property
    def inner_host(self) -> str:
        """The address of services for this stack alone: HOST if that is loopback, else 127.0.0.1."""
        return self.host if is_loopback(self.host) else LOOPBACK

    @property
    def governor_host(self) -> str:
        """HOST if GOVERNOR_TOKENS protect the governor, else `inner_host`."""
        return self.host if self.governor_tokens.get_secret_value() else self.inner_host

    @property
    def reach(self) -> str:
        return reached_at(self.host)

    @property
    def metrics_reach(self) -> str:
        return reached_at(self.metrics_host)

    @property
    def router_url(self) -> str:
        return f"http://{self.reach}:{self.router_port}"

    @property
    def retrieval_url(self) -> str:
        return f"http://{reached_at(self.inner_host)}:{self.retrieval_port}"

    @property
    def storm_url(self) -> str:
        return f"http://{reached_at(self.inner_host)}:{self.storm_port}"

    @property
    def governor_address(self) -> str:
        """HOST:PORT, not a URL: its protocol is not HTTP."""
        return f"{reached_at(self.governor_host)}:{self.governor_port}"

    @property
    def token_file(self) -> Path:
        """Where `weir up` writes INTERNAL_TOKEN, for tools of the same user."""
        return self.folder / TOKEN_FILE


def reached_at(host: str) -> str:
    """The address under which this machine reaches a listener on `host`."""
    reached = "127.0.0.1" if host in EVERYWHERE else host
    return f"[{reached}]" if ":" in reached else reached
