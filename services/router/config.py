"""The router's settings, and the worker list (WORKERS_FILE)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from services.runtime.settings import ServiceSettings, describe

MAX_WORKERS = 256


class WorkerSpec(BaseModel):
    """One entry of the worker list."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    kind: Literal["weir", "openai"]
    url: str
    slots: int | None = Field(None, ge=1, le=100_000)
    lookahead: int = Field(0, ge=0, le=1)
    models: list[str] = []
    api_key_env: str | None = None

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// address")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "openai" and self.slots is None:
            raise ValueError("kind openai needs `slots`, the most requests it may run at once")
        if self.kind == "weir" and self.slots is not None:
            raise ValueError("kind weir announces its own slots: leave `slots` out")
        if self.api_key_env is not None and not os.environ.get(self.api_key_env):  # noqa: TID251  named by the file
            raise ValueError(f"api_key_env names {self.api_key_env}, which is not set")
        return self

    def api_key(self) -> str | None:
        """The key for this upstream, read from the variable that the file names; keys never stand in files."""
        return os.environ[self.api_key_env] if self.api_key_env else None  # noqa: TID251  named by the file


class WorkerList(BaseModel):
    """The whole file: `workers: [...]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[list[WorkerSpec], Field(min_length=1, max_length=MAX_WORKERS)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [worker.name for worker in self.workers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"these names stand twice: {', '.join(twice)}")
        return self


class RouterSettings(ServiceSettings):
    """Every setting of the router."""

    router_port: int = Field(8000, ge=0, le=65535, description="port of the public API")
    metrics_port: int = Field(9000, ge=0, le=65535, description="port of the metrics and admin listener")
    workers: str = Field(
        "http://127.0.0.1:8010,http://127.0.0.1:8011",
        description="addresses of weir workers, comma-separated; WORKERS_FILE replaces it",
    )
    workers_file: Path | None = Field(None, description="YAML list of workers of either kind")
    retrieval_url: str = Field("http://127.0.0.1:8001", description="address of the retrieval service")
    max_inflight: int = Field(64, ge=1, le=100_000, description="hard cap on requests dispatched to workers")
    retrieval_budget_ms: float = Field(100, gt=0, le=60_000, description="most milliseconds for retrieval")
    cache_ttl_s: float = Field(300, ge=0, le=86_400, description="seconds a cached retrieval result is fresh")
    default_slo_ms: float = Field(30_000, gt=0, le=600_000, description="deadline of a request that names none, ms")
    max_deadline_ms: float = Field(120_000, gt=0, le=600_000, description="longest deadline a client may ask for, ms")
    default_max_tokens: int = Field(256, ge=1, le=131_072, description="completion tokens where the client names none")
    context_tokens: int = Field(1500, ge=64, le=1_000_000, description="most tokens of passages in a prompt")
    max_lab_tenants: int = Field(
        16, ge=1, le=1000, description="tenant names kept apart in lab mode; the rest share one"
    )
    probe_interval_s: float = Field(1.0, gt=0, le=60, description="seconds between looks at each worker")

    @model_validator(mode="after")
    def _deadlines_agree(self) -> Self:
        if self.default_slo_ms > self.max_deadline_ms:
            raise ValueError("DEFAULT_SLO_MS exceeds MAX_DEADLINE_MS")
        self.worker_specs()
        return self

    def worker_specs(self) -> list[WorkerSpec]:
        """The workers, from the file or from WORKERS. Raises ValueError listing every fault."""
        if self.workers_file is None:
            urls = [url.strip() for url in self.workers.split(",") if url.strip()]
            named: Any = [{"name": f"worker-{i}", "kind": "weir", "url": url} for i, url in enumerate(urls)]
            return _checked({"workers": named}, "WORKERS")
        try:
            content = yaml.safe_load(self.workers_file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"WORKERS_FILE {self.workers_file}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"WORKERS_FILE {self.workers_file} is not YAML: {error}") from None
        return _checked(content, f"WORKERS_FILE {self.workers_file}")


def _checked(content: Any, where: str) -> list[WorkerSpec]:
    try:
        return WorkerList.model_validate(content).workers
    except ValidationError as faults:
        raise ValueError(f"{where}:\n{describe(faults)}") from None
