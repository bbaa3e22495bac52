"""Settings of the retrieval service, and of `python -m services.retrieval.ingest`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator

from services.runtime.settings import ServiceSettings

MIN_SECRET_CHARS = 16
MIN_THRESHOLD = 0.99  # measured: docs/results/semantic.md


def with_password(prefix: str, url: str, file: Path | None) -> str:
    """The URL with the password in `file`; `prefix` names the settings. Raises ValueError."""
    if file is None:
        return url
    parts = urlsplit(url)
    if parts.password:
        raise ValueError(f"{prefix}PASSWORD_FILE: {prefix}URL has a password, too: take one of them")
    try:
        password = quote(file.read_text(encoding="utf-8").strip(), safe="")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{prefix}PASSWORD_FILE: {file} cannot be read: {error}") from None
    user, _, address = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user or 'weir'}:{password}@{address}"))


def _faults(of: Callable[[], object]) -> Iterator[str]:
    try:
        of()
    except ValueError as fault:
        yield str(fault)


class RetrievalSettings(ServiceSettings):
    """Settings of one retrieval service, read from the environment."""

    retrieval_port: int = Field(8001, ge=0, le=65535, description="port of the retrieval service")
    metrics_port: int = Field(9001, ge=0, le=65535, description="port of retrieval's metrics listener")
    postgres_url: str = Field(
        "postgresql://weir:weir@127.0.0.1:5432/weir",
        pattern=r"^postgres(ql)?://",
        description="PostgreSQL with pgvector, the document store",
    )
    postgres_password_file: Path | None = Field(
        None, description="file with the database password, if POSTGRES_URL has none"
    )
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0", pattern=r"^(rediss?|unix)://", description="Redis or Valkey, the cache"
    )
    retrieval_budget_ms: float = Field(
        100.0, gt=0, le=60_000, description="longest retrieval, milliseconds; a request may set less"
    )
    cache_ttl_s: float = Field(
        300.0, ge=0, le=86_400, description="how long a cached result is fresh, seconds; 0 turns the cache off"
    )
    stale_ttl_s: float = Field(
        3600.0, ge=0, le=604_800, description="how long an expired result may replace a failed search, seconds"
    )
    redis_timeout_ms: float = Field(
        20.0,
        gt=0,
        le=1000,
        description="longest use of the cache per request, milliseconds; at most a quarter of the budget",
    )
    redis_pool_size: int = Field(16, ge=1, le=1024, description="most connections to Redis")
    semantic_threshold: float = Field(
        0.0, ge=0, le=1, description="cosine from which two questions share a result, at least 0.99; 0 for never"
    )
    semantic_max_bytes: int = Field(
        33_554_432, ge=1_048_576, le=4_294_967_296, description="memory of the semantic cache, bytes"
    )
    cache_key_secret: SecretStr = Field(
        SecretStr(""), description="secret of the cache keys, the same for all replicas; empty for none"
    )
    exact_search_chunks: int = Field(
        8_000, ge=0, le=10_000_000, description="largest corpus that is searched exactly, chunks"
    )
    postgres_pool_size: int = Field(4, ge=1, le=256, description="connections to PostgreSQL, held open")
    postgres_connect_timeout_s: float = Field(
        3.0, gt=0, le=60, description="longest attempt to connect to PostgreSQL, seconds"
    )
    embed_model_path: str = Field("", description="folder of the embedding model; empty for the installed one")
    embed_threads: int = Field(1, ge=1, le=64, description="processor threads of a pass of the embedder")
    embed_queue_size: int = Field(512, ge=1, le=65_536, description="most texts queued for the embedder")
    ingest_max_file_bytes: int = Field(
        8_388_608, ge=1024, le=1_073_741_824, description="largest document that is ingested, bytes"
    )
    document_max_chunks: int = Field(256, ge=1, le=100_000, description="most chunks of a document put over the API")
    documents_per_tenant: int = Field(
        10_000, ge=0, le=2**53, description="most documents of a tenant, unless its entry says otherwise"
    )
    documents_per_tenant_bytes: int = Field(
        268_435_456,
        ge=0,
        le=2**53,
        description="most text of a tenant's chunks, bytes, unless its entry says otherwise",
    )
    chunk_tokens: int = Field(200, ge=32, le=254, description="most tokens in a chunk, its headings included")
    chunk_overlap_tokens: int = Field(30, ge=0, le=127, description="overlap of neighbouring chunks, tokens")

    @field_validator("semantic_threshold")
    @classmethod
    def _threshold_is_safe(cls, threshold: float) -> float:
        if 0 < threshold < MIN_THRESHOLD:
            raise ValueError(f"below {MIN_THRESHOLD} measurements found too many wrong answers; 0 turns it off")
        return threshold

    @field_validator("cache_key_secret")
    @classmethod
    def _secret_is_long(cls, secret: SecretStr) -> SecretStr:
        if 0 < len(secret.get_secret_value()) < MIN_SECRET_CHARS:
            raise ValueError(f"a secret has at least {MIN_SECRET_CHARS} characters")
        return secret

    @property
    def database_url(self) -> str:
        """POSTGRES_URL with the password of POSTGRES_PASSWORD_FILE. Raises ValueError."""
        return with_password("POSTGRES_", self.postgres_url, self.postgres_password_file)

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        yield from _faults(lambda: self.database_url)
        if self.chunk_overlap_tokens * 2 > self.chunk_tokens:
            yield "CHUNK_OVERLAP_TOKENS may be at most half of CHUNK_TOKENS"
        yield from self.inner_faults("HOST", "METRICS_HOST")


class MigrateSettings(RetrievalSettings):
    """Settings of `python -m services.retrieval.migrate`; no service reads the four that this class adds."""

    postgres_migrate_url: str = Field(
        "",
        pattern=r"^(postgres(ql)?://.*)?$",
        description="PostgreSQL URL of the schema's owner, for `services.retrieval.migrate` only",
    )
    postgres_migrate_password_file: Path | None = Field(
        None, description="file with the owner's password, if POSTGRES_MIGRATE_URL has none"
    )
    postgres_monitor_url: str = Field(
        "",
        pattern=r"^(postgres(ql)?://.*)?$",
        description="PostgreSQL URL of a metrics exporter's user, whom the migration creates; empty for none",
    )
    postgres_monitor_password_file: Path | None = Field(
        None, description="file with that user's password, if POSTGRES_MONITOR_URL has none"
    )

    @property
    def owner_url(self) -> str:
        """POSTGRES_MIGRATE_URL, else POSTGRES_URL, each with the password of its file. Raises ValueError."""
        if not self.postgres_migrate_url:
            return self.database_url
        return with_password("POSTGRES_MIGRATE_", self.postgres_migrate_url, self.postgres_migrate_password_file)

    @property
    def monitor_url(self) -> str:
        """POSTGRES_MONITOR_URL with the password of its file; empty for none. Raises ValueError."""
        if not self.postgres_monitor_url:
            return ""
        return with_password("POSTGRES_MONITOR_", self.postgres_monitor_url, self.postgres_monitor_password_file)

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        yield from _faults(lambda: self.owner_url)
        yield from _faults(lambda: self.monitor_url)
