"""Settings, the only reader of the environment.

A field's variable is its name in capitals. All faults are reported at once, before anything starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.runtime.internaltoken import NONE, address_faults, read_token, token_fault
from services.runtime.tracing import Sampling, installed

EXIT_BAD_SETTINGS = 2
NO_LISTENER = {"host": "127.0.0.1", "metrics_host": "127.0.0.1"}
"""Settings for a command that reads a service's settings and listens on nothing."""


class ServiceSettings(BaseSettings):
    """The settings of every service. Sources in order: arguments, the environment, `.env`, the default."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_file=".env", env_file_encoding="utf-8", env_ignore_empty=True
    )

    host: str = Field("127.0.0.1", min_length=1, description="address the public port listens on")
    metrics_host: str = Field(
        "127.0.0.1", min_length=1, description="address the metrics and admin listener listens on"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port of the metrics and admin listener")
    allowed_hosts: str = Field("", description="further accepted host names, separated by commas; * for any")
    internal_token: SecretStr = Field(
        SecretStr(""), description="token between Weir's services; `none`: no check, and none is created"
    )
    internal_token_file: Path | None = Field(None, description="file with the token, if INTERNAL_TOKEN is empty")
    inner_network: bool = Field(
        False, description="only Weir's services reach HOST and METRICS_HOST: no token is needed"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="lowest level that is logged")
    http_timeout_s: float = Field(
        30.0,
        gt=0,
        le=600,
        description="longest call to another service, seconds; a deadline may be shorter",
    )
    drain_timeout_s: float = Field(
        10.0, ge=0, le=600, description="longest time for running requests to finish after SIGTERM, seconds"
    )
    drain_delay_s: float = Field(
        0.0, ge=0, le=600, description="seconds to keep serving, not ready, after SIGTERM, for load balancers to notice"
    )
    watchdog_s: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="longest block of the event loop before the process terminates, seconds; 0: no limit",
    )
    max_body_bytes: int = Field(1_048_576, ge=1024, le=268_435_456, description="largest request body accepted, bytes")
    max_connections: int = Field(4096, ge=1, le=100_000, description="most open client connections")
    max_source_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="share of MAX_CONNECTIONS and MAX_INCOMING_BYTES per client address; 1 behind a proxy",
    )
    max_incoming_bytes: int = Field(
        67_108_864,
        ge=65_536,
        le=68_719_476_736,
        description="memory of requests being received, and of large bodies being answered, of all clients, bytes; at "
        "least MAX_BODY_BYTES",
    )
    client_timeout_s: float = Field(
        30.0,
        gt=0,
        le=600,
        description="longest time to receive a request body, seconds; a third of it for the headers",
    )
    write_stall_s: float = Field(
        10.0, gt=0, le=600, description="longest time a client may read nothing before it is disconnected, seconds"
    )
    idle_timeout_s: float = Field(75.0, gt=0, le=3600, description="seconds an idle connection is kept")
    otel_traces_exporter: Literal["none", "otlp"] = Field(
        "none", description="trace exporter; otlp needs the extra `otel`"
    )
    otel_exporter_otlp_endpoint: str = Field(
        "http://127.0.0.1:4318", pattern=r"^https?://[^/\s]+(/\S*)?$", description="collector of traces, over HTTP"
    )
    otel_exporter_otlp_headers: SecretStr = Field(
        SecretStr(""), description="headers for the collector, as name=value, separated by commas"
    )
    otel_service_name: str = Field(
        "", max_length=128, description="service name in traces; empty for weir-router and so on"
    )
    otel_traces_sampler: Sampling = Field("parentbased_always_on", description="which requests are traced")
    otel_traces_sampler_arg: float = Field(1.0, ge=0, le=1, description="share of requests that ratio samplers trace")

    @property
    def leave_s(self) -> float:
        """Seconds that the service may take to stop after SIGTERM."""
        return self.drain_delay_s + self.drain_timeout_s

    @property
    def otlp_headers(self) -> dict[str, str]:
        pairs = [pair.partition("=") for pair in self.otel_exporter_otlp_headers.get_secret_value().split(",")]
        return {name.strip().lower(): value.strip() for name, _, value in pairs if name.strip()}

    @property
    def shared_token(self) -> bytes:
        """The token of Weir's own services; empty for none. Raises ValueError if its file cannot be read."""
        text = self.internal_token.get_secret_value()
        if not text and self.internal_token_file is not None:
            text = read_token(self.internal_token_file)
        return b"" if text == NONE else text.encode("ascii")

    def contradictions(self) -> Iterator[str]:
        """The faults of combined settings, one line each. Each service adds its own."""
        if self.internal_token_file is not None and not self.internal_token.get_secret_value():
            try:
                read_token(self.internal_token_file)
            except ValueError as fault:
                yield f"INTERNAL_TOKEN_FILE: {fault}"
        if self.max_incoming_bytes < self.max_body_bytes:
            yield (
                f"MAX_INCOMING_BYTES={self.max_incoming_bytes}: must be at least MAX_BODY_BYTES "
                f"({self.max_body_bytes}), or the largest body could never be received"
            )

    def inner_faults(self, *settings: str) -> Iterator[str]:
        """The faults of the addresses of listeners for Weir's own services, named by their settings."""
        try:
            token = self.shared_token
        except ValueError:
            return  # reported by `contradictions`
        addresses = {"HOST": self.host, "METRICS_HOST": self.metrics_host}
        yield from address_faults(token, self.inner_network, **{name: addresses[name] for name in settings})

    @model_validator(mode="after")
    def _agree(self) -> Self:
        faults = list(self.contradictions())
        if faults:
            raise ValueError("\n  ".join(faults))
        return self

    @field_validator("internal_token")
    @classmethod
    def _token_is_long(cls, token: SecretStr) -> SecretStr:
        fault = token_fault(token.get_secret_value())
        if fault is not None:
            raise ValueError(fault)
        return token

    @field_validator("otel_traces_exporter")
    @classmethod
    def _can_export(cls, exporter: str) -> str:
        if exporter == "otlp" and not installed():
            raise ValueError("traces need the extra `otel`: make otel, or pip install 'weir[otel]'")
        return exporter


S = TypeVar("S", bound=BaseSettings)


def load(cls: type[S], **overrides: Any) -> S:
    """Read the settings, or print every fault on stderr and exit with status 2."""
    try:
        return cls(**overrides)
    except ValidationError as faults:
        sys.stderr.write(f"{faults.error_count()} setting(s) cannot be used:\n{describe(faults)}\n")
        raise SystemExit(EXIT_BAD_SETTINGS) from None


def describe(faults: ValidationError) -> str:
    """One line per fault: the variable, its value, the fault. A secret's value is not printed."""
    return "\n".join(f"  {_fault(fault)}" for fault in faults.errors(include_url=False))


def _fault(fault: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in fault["loc"]).upper()
    value = fault.get("input")
    hidden = any(word in name for word in ("KEY", "TOKEN", "SECRET", "URL", "PASSWORD"))
    shown = "" if hidden or isinstance(value, dict) else f"={value!r}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{name}{shown}: {message}" if name else message


def environment() -> dict[str, str]:
    return dict(os.environ)
