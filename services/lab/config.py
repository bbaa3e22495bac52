"""The lab's settings: which ports, which folder, how many workers, whose database."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.runtime.settings import ServiceSettings

METRICS_OFFSET = 1000  # a part's metrics listen this far above its own port: 8000 and 9000, 8010 and 9010
HIGHEST_PORT = 65535 - METRICS_OFFSET
EVERYWHERE = ("0.0.0.0", "::")


class LabSettings(ServiceSettings):
    """What `weir up` starts and where. Any other setting in the environment or in .env passes through to the parts."""

    router_port: int = Field(8000, ge=1, le=HIGHEST_PORT, description="port of the router; its metrics 1000 above")
    retrieval_port: int = Field(8001, ge=1, le=HIGHEST_PORT, description="port of retrieval; its metrics 1000 above")
    worker_port: int = Field(8010, ge=1, le=HIGHEST_PORT, description="port of the first worker; the others follow")
    workers_count: int = Field(2, ge=1, le=64, description="simulated workers to start")
    workers: str = Field("", description="comma-separated addresses of workers of yours; then none is started")
    workers_file: Path | None = Field(None, description="YAML list of workers of yours; then none is started")
    data_dir: Path = Field(Path(".weir"), description="folder of the embedded database, the logs and the pid file")
    seed_corpus: str = Field("docs", description="folder that `weir up` ingests first; `none` for no corpus")
    seed_tenant: str = Field("demo", min_length=1, max_length=128, description="tenant whom that corpus belongs to")
    embedded_postgres_port: int = Field(8432, ge=1, le=65535, description="port of the embedded PostgreSQL")
    embedded_redis_port: int = Field(8379, ge=1, le=65535, description="port of the embedded Valkey")
    postgres_url: str = Field("", description="a PostgreSQL of yours; then none is embedded")
    redis_url: str = Field("", description="a Redis or Valkey of yours; then none is embedded")

    @property
    def folder(self) -> Path:
        return self.data_dir.expanduser().absolute()

    @property
    def own_workers(self) -> bool:
        return not self.workers and self.workers_file is None

    @property
    def worker_ports(self) -> list[int]:
        return [self.worker_port + index for index in range(self.workers_count)] if self.own_workers else []

    @property
    def worker_urls(self) -> list[str]:
        return [f"http://{self.reach}:{port}" for port in self.worker_ports]

    @property
    def reach(self) -> str:
        """Where we find what listens on `host`."""
        host = "127.0.0.1" if self.host in EVERYWHERE else self.host
        return f"[{host}]" if ":" in host else host

    @property
    def router_url(self) -> str:
        return f"http://{self.reach}:{self.router_port}"

    @property
    def retrieval_url(self) -> str:
        return f"http://{self.reach}:{self.retrieval_port}"
