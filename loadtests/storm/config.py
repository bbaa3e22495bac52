"""Settings of the storm bench."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from loadtests.storm.sliders import MAX_CONNECTIONS, MAX_RATE_PER_S
from services.runtime.settings import ServiceSettings


class StormSettings(ServiceSettings):
    """Where the bench listens, what it may reach and how much it may send."""

    storm_port: int = Field(8090, ge=0, le=65535, description="port of the storm bench")
    metrics_port: int = Field(9008, ge=0, le=65535, description="port of the storm bench's metrics listener")
    storm_router_url: str = Field(
        "http://127.0.0.1:8000", pattern=r"^https?://[^/\s]+$", description="the front door that storms go through"
    )
    storm_metrics_url: str = Field(
        "http://127.0.0.1:9000", pattern=r"^https?://[^/\s]+$", description="the router's metrics listener"
    )
    storm_fault_urls: str = Field(
        "http://127.0.0.1:9010,http://127.0.0.1:9011",
        description="metrics listeners of the simulated workers that may be slowed, comma-separated; `none` for none",
    )
    storm_capacity_rps: float = Field(
        0.0, ge=0, le=100_000, description="answers a second that a load of 1 is; 0: by what workers announce"
    )
    storm_max_rps: float = Field(MAX_RATE_PER_S, gt=0, le=MAX_RATE_PER_S, description="most requests a second")
    storm_connections: int = Field(MAX_CONNECTIONS, ge=1, le=MAX_CONNECTIONS, description="most requests under way")
    workers: str = Field(
        "http://127.0.0.1:8010,http://127.0.0.1:8011", description="addresses of the workers, comma-separated"
    )
    redis_url: str = Field("", description="the cache that may be silenced; empty: none")
    tenants_file: Path | None = Field(None, description="tenants of the router; with one there is no storm bench")

    @property
    def worker_urls(self) -> tuple[str, ...]:
        return addresses(self.workers)

    @property
    def fault_urls(self) -> tuple[str, ...]:
        return () if self.storm_fault_urls == "none" else addresses(self.storm_fault_urls)

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        for name, urls in (("WORKERS", self.worker_urls), ("STORM_FAULT_URLS", self.fault_urls)):
            if any(not url.startswith(("http://", "https://")) for url in urls):
                yield f"{name}: every address begins with http:// or https://"
        yield from self.inner_faults("HOST", "METRICS_HOST")


def addresses(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))
