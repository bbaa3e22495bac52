"""The router's settings. Each is the environment variable of the same name in capitals."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from services.core.policies import Policies
from services.router.tenancy import exposure, tenantsfile
from services.router.workers import workersfile
from services.router.workers.workersfile import WorkerSpec
from services.runtime.internaltoken import MIN_TOKEN_CHARS
from services.runtime.settings import ServiceSettings
from services.runtime.tls import TlsFiles, tls_faults


class RouterSettings(ServiceSettings):
    router_port: int = Field(8000, ge=0, le=65535, description="port of the public API")
    router_processes: int = Field(
        1, ge=1, le=64, description="router processes on that port; several need Linux and EXCHANGE_URL"
    )
    metrics_port: int = Field(9000, ge=0, le=65535, description="port of the metrics and admin listener")
    tls_cert_file: Path | None = Field(None, description="certificate chain (PEM) of the public port: enables HTTPS")
    tls_key_file: Path | None = Field(None, description="private key (PEM) of that certificate, without a password")
    tls_client_ca_file: Path | None = Field(
        None, description="CA (PEM) that client certificates must be signed by: enables mutual TLS"
    )
    workers: str = Field(
        "http://127.0.0.1:8010,http://127.0.0.1:8011",
        description="addresses of Weir workers, separated by commas; WORKERS_FILE replaces it",
    )
    workers_file: Path | None = Field(None, description="YAML file of Weir workers and OpenAI-compatible servers")
    tenants_file: Path | None = Field(
        None, description="YAML file of tenants and hashes of their keys; empty for lab mode"
    )
    lab_network: bool = Field(
        False, description="only this machine reaches HOST: lab mode and example keys are allowed"
    )
    published_address: str = Field(
        "", description="published address of a container's port; lab mode is judged by it instead of HOST"
    )
    retrieval_url: str = Field("http://127.0.0.1:8001", description="address of the retrieval service")
    storm_url: str = Field(
        "",
        pattern=r"^(https?://[^/\s]+)?$",
        description="address of the storm bench; empty for none; used in lab mode only",
    )
    max_body_bytes: int = Field(16_777_216, ge=1024, le=268_435_456, description="largest request body accepted, bytes")
    max_incoming_bytes: int = Field(
        268_435_456,
        ge=65_536,
        le=68_719_476_736,
        description="memory of requests being received, and of large bodies being answered, of all clients, bytes; at "
        "least MAX_BODY_BYTES",
    )
    max_inflight: int = Field(
        64, ge=1, le=100_000, description="hard cap on requests dispatched to workers, look-ahead included"
    )
    max_queue_size: int = Field(256, ge=1, le=100_000, description="most queued requests, of all tenants")
    tenant_queue_size: int = Field(64, ge=1, le=100_000, description="most queued requests of one tenant")
    max_queue_bytes: int = Field(
        67_108_864, ge=1024, le=2**40, description="most bytes of queued requests; a quarter of it per tenant"
    )
    admission_safety_margin: float = Field(
        0.8, gt=0, le=1, description="share of a deadline into which the predicted wait and service must fit"
    )
    policy: str = Field(
        "weir", description="which mechanisms are on: weir (all), fifo (none), or some of no-admission, ..."
    )
    retrieval_budget_ms: float = Field(100, gt=0, le=60_000, description="longest retrieval, milliseconds")
    cache_ttl_s: float = Field(300, ge=0, le=86_400, description="seconds a cached retrieval result is fresh")
    default_slo_ms: float = Field(
        30_000, gt=0, le=600_000, description="deadline of a request that sets none, milliseconds"
    )
    max_deadline_ms: float = Field(
        120_000, gt=0, le=600_000, description="longest deadline that a client may set, milliseconds"
    )
    default_ttft_ms: float = Field(
        2000, gt=0, le=600_000, description="time to first token of a stream that sets none, milliseconds"
    )
    stream_silence_s: float = Field(
        30.0, gt=0, le=600, description="longest pause of a worker within a stream, seconds"
    )
    default_max_tokens: int = Field(
        0, ge=0, le=131_072, description="most completion tokens of a request that sets no limit; 0: no limit is set"
    )
    context_tokens: int = Field(1500, ge=64, le=1_000_000, description="most tokens of passages in a prompt")
    completion_weight: float = Field(
        0.0, ge=0, le=10_000,
        description="cost of a completion token, in prompt tokens; 0: as the workers announce, else 2",
    )  # fmt: skip
    retry_share: float = Field(0.1, ge=0, le=1, description="most retries, as a share of the requests sent to workers")
    max_lab_tenants: int = Field(
        16, ge=1, le=1000, description="most tenant names in lab mode; all others share `other`"
    )
    lab_tenant_rps: float = Field(
        0.0, ge=0, le=1e6, description="rate limit of each lab-mode tenant, requests per second; 0 for none"
    )
    exchange_url: str = Field(
        "",
        pattern=r"^((rediss?|unix)://.+)?$",
        description="Redis or Valkey through which several routers share their workers; empty: this router is alone",
    )
    router_name: str = Field(
        "",
        pattern=r"^([A-Za-z0-9._:-]{1,64})?$",
        description="name of this router among those that share the workers; empty: the host's name",
    )
    probe_interval_s: float = Field(1.0, gt=0, le=60, description="seconds between probes of each worker")
    admin_token: SecretStr = Field(
        SecretStr(""), description="bearer token of /admin; required if METRICS_HOST is not loopback"
    )

    def contradictions(self) -> Iterator[str]:
        """Faults of settings that do not fit together."""
        yield from super().contradictions()
        yield from tls_faults(self.tls)
        if self.default_slo_ms > self.max_deadline_ms:
            yield "DEFAULT_SLO_MS exceeds MAX_DEADLINE_MS"
        if self.tenant_queue_size > self.max_queue_size:
            yield "TENANT_QUEUE_SIZE exceeds MAX_QUEUE_SIZE"
        yield from self._faults_of_several()
        looks: list[Callable[[], object]] = [self.worker_specs, self._exposure, lambda: self.policies]
        yield from (str(fault) for look in looks if (fault := self._fault_of(look)))
        yield from self.inner_faults("METRICS_HOST")

    def _faults_of_several(self) -> Iterator[str]:
        if self.router_processes == 1:
            return
        if sys.platform != "linux":
            yield f"ROUTER_PROCESSES={self.router_processes}: several processes on one port need Linux; use 1"
        if not self.several_routers:
            yield (
                f"ROUTER_PROCESSES={self.router_processes}: set EXCHANGE_URL (redis://...), through which processes "
                "share the workers; without it each would use all of their slots"
            )

    @property
    def several_routers(self) -> bool:
        """Whether other routers use the same workers."""
        return bool(self.exchange_url)

    @property
    def own_name(self) -> str:
        """This router's name among several: ROUTER_NAME, or the host's name."""
        return self.router_name or re.sub(r"[^A-Za-z0-9._:-]", "-", socket.gethostname())[:64] or "router"

    @property
    def tls(self) -> TlsFiles:
        """The public port's certificate, key and client CA."""
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)

    @property
    def lab(self) -> exposure.Lab:
        """The addresses that decide whether lab mode and example keys are allowed."""
        return exposure.Lab(self.host, self.published_address, self.lab_network)

    @field_validator("admin_token")
    @classmethod
    def _token_is_not_guessed(cls, token: SecretStr) -> SecretStr:
        if 0 < len(token.get_secret_value()) < MIN_TOKEN_CHARS:
            raise ValueError(f"a token has at least {MIN_TOKEN_CHARS} characters")
        return token

    def _exposure(self) -> None:
        """Raises ValueError for a faulty tenants file, or if this address must not be used with it."""
        listed = None if self.tenants_file is None else tenantsfile.read(self.tenants_file, self.max_deadline_ms)
        fault = exposure.fault(self.lab, listed)
        if fault is not None:
            raise ValueError(fault)

    @staticmethod
    def _fault_of(look: Callable[[], object]) -> ValueError | None:
        try:
            look()
        except ValueError as fault:
            return fault
        return None

    @property
    def policies(self) -> Policies:
        """The policies named by POLICY. Raises ValueError."""
        try:
            return Policies.named(self.policy)
        except ValueError as fault:
            raise ValueError(f"POLICY: {fault}") from None

    def worker_specs(self) -> list[WorkerSpec]:
        """The workers of WORKERS_FILE, or of WORKERS. Raises ValueError listing every fault."""
        if self.workers_file is None:
            specs = workersfile.from_urls(self.workers)
        else:
            specs = workersfile.read(self.workers_file)
        faults = "\n  ".join(self._faults_of_sharing(specs))
        if faults:
            raise ValueError(faults)
        return specs

    def _faults_of_sharing(self, specs: list[WorkerSpec]) -> Iterator[str]:
        """What keeps several routers from sharing these workers, or one router from using a desk."""
        lenders = [spec.desk or spec.url for spec in specs if spec.desk is not None or spec.kind == "weir"]
        twice = sorted({url for url in lenders if lenders.count(url) > 1})
        if self.several_routers and twice:
            yield f"EXCHANGE_URL: a worker lends to a router once, and is listed twice: {', '.join(twice)}"
        desks = [spec.name for spec in specs if spec.desk is not None]
        if desks and not self.several_routers:
            yield (
                f"WORKERS_FILE: `desk` of {', '.join(desks)}: a desk lends to several routers. Set EXCHANGE_URL, or "
                "give `slots` instead"
            )
