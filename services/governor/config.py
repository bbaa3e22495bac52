"""Settings of the governor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import DotEnvSettingsSource, EnvSettingsSource

from services.governor.protocol import OVERHEAD_BYTES
from services.governor.upload import MAX_PAYLOAD_BYTES
from services.runtime.addresses import is_loopback
from services.runtime.settings import ServiceSettings

MIN_TOKEN_CHARS = 16
KEEPALIVE, OLD_KEEPALIVE = "governor_keepalive_s", "governor_word_every_s"
RENAMED = {OLD_KEEPALIVE.upper(): KEEPALIVE.upper()}
"""Settings by their old names, which are read for one release, and their new ones."""


class GovernorSettings(ServiceSettings):
    """One governor: its cap, the bounds of its connections, and its backend."""

    governor_port: int = Field(7777, ge=0, le=65535, description="port of the governor")
    metrics_port: int = Field(9007, ge=0, le=65535, description="port of the governor's metrics listener")
    governor_max_inflight: int = Field(4, ge=1, le=100_000, description="most concurrent jobs, over all connections")
    governor_backend: Literal["http", "stub"] = Field(
        "http", description="what a job does: http posts to GOVERNOR_UPSTREAM_URL, stub sleeps"
    )
    governor_upstream_url: str = Field(
        "http://127.0.0.1:8000/v1/completions",
        pattern=r"^https?://[^/?#\s]+(/[\x21\x24-\x3e\x40-\x7e]*)?(\?[\x21\x24-\x7e]*)?$",
        description="URL that payloads are posted to",
    )
    governor_upstream_key: SecretStr = Field(SecretStr(""), description="API key for frames without `auth`")
    governor_stub_ms: float = Field(200.0, ge=0, le=3_600_000, description="duration of a stub job, milliseconds")
    governor_tokens: SecretStr = Field(
        SecretStr(""), description="accepted values of a frame's `auth`, separated by commas; empty: no check"
    )
    governor_idle_s: float = Field(
        60.0, gt=0, le=86_400, description="longest time for a client to send a whole line, seconds"
    )
    governor_keepalive_s: float = Field(
        10.0,
        gt=0,
        le=600,
        validation_alias=AliasChoices(KEEPALIVE, OLD_KEEPALIVE),
        description="interval of keep-alive messages during a job, seconds",
    )
    governor_line_bytes: int = Field(
        262_144, ge=1024, le=16_777_216, description="longest line, without its end, bytes"
    )
    governor_jobs: int = Field(64, ge=1, le=65_536, description="most open jobs of one connection")
    governor_connection_bytes: int = Field(
        67_108_864, ge=1_048_576, le=4_294_967_296, description="most memory reserved by one connection, bytes"
    )
    governor_total_bytes: int = Field(
        268_435_456, ge=1_048_576, le=68_719_476_736, description="most memory reserved by all connections, bytes"
    )

    @property
    def tokens(self) -> frozenset[str]:
        """The accepted values of a frame's `auth`; empty: any."""
        return frozenset(filter(None, map(str.strip, self.governor_tokens.get_secret_value().split(","))))

    @field_validator("governor_tokens")
    @classmethod
    def _tokens_are_long(cls, tokens: SecretStr) -> SecretStr:
        words = [word for part in tokens.get_secret_value().split(",") if (word := part.strip())]
        if any(len(word) < MIN_TOKEN_CHARS for word in words):
            raise ValueError(f"each token must have at least {MIN_TOKEN_CHARS} characters")
        return tokens

    def contradictions(self) -> Iterator[str]:
        """Settings that are valid alone but not together."""
        yield from super().contradictions()
        minimum = MAX_PAYLOAD_BYTES + self.governor_line_bytes + OVERHEAD_BYTES
        if self.governor_connection_bytes < minimum:
            yield (
                f"GOVERNOR_CONNECTION_BYTES must hold a payload of {MAX_PAYLOAD_BYTES:,} bytes, a line, and "
                f"{OVERHEAD_BYTES:,} bytes of names: at least {minimum:,}"
            )
        if self.governor_total_bytes < self.governor_connection_bytes:
            yield "GOVERNOR_TOTAL_BYTES must be at least GOVERNOR_CONNECTION_BYTES"
        if not (is_loopback(self.host) or self.tokens or self.inner_network):
            yield (
                f"HOST={self.host} is not loopback, and any client there can post jobs with this governor's key: "
                "set GOVERNOR_TOKENS, or HOST=127.0.0.1, or INNER_NETWORK=true if only your clients reach it"
            )
        yield from self.inner_faults("METRICS_HOST")


def deprecated() -> dict[str, str]:
    """Old names of settings that the environment or `.env` uses, and the new ones."""
    given = {**DotEnvSettingsSource(GovernorSettings).env_vars, **EnvSettingsSource(GovernorSettings).env_vars}
    return {old: new for old, new in RENAMED.items() if old.lower() in given}
