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
        description="PostgreSQL with pgvector, the store of documents",
    )
    postgres_password_file: Path | None = Field(None, description="file with the password, where POSTGRES_URL has none")
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0", pattern=r"^(rediss?|unix)://", description="Redis or Valkey, the cache"
    )
    retrieval_budget_ms: float = Field(
        100.0, gt=0, le=60_000, description="milliseconds a retrieval may take; a request may allow less"
    )
    cache_ttl_s: float = Field(
        300.0, ge=0, le=86_400, description="seconds a cached result counts as fresh, at most; 0 turns the cache off"
    )
    stale_ttl_s: float = Field(
        3600.0, ge=0, le=604_800, description="seconds after that for which it may still stand in when a search fails"
    )
    redis_timeout_ms: float = Field(
        20.0, gt=0, le=1000, description="milliseconds the cache may cost a request; never over a quarter of its budget"
    )
    redis_pool_size: int = Field(16, ge=1, le=1024, description="connections to Redis")
    semantic_threshold: float = Field(
        0.0, ge=0, le=1, description="cosine from which on two questions count as one, 0.99 or more; 0 for never"
    )
    semantic_max_bytes: int = Field(
        33_554_432, ge=1_048_576, le=4_294_967_296, description="bytes the results of like questions may take"
    )
    cache_key_secret: SecretStr = Field(
        SecretStr(""), description="secret under which cache keys are made, the same at every replica; empty for none"
    )
    exact_search_chunks: int = Field(
        8_000, ge=0, le=10_000_000, description="chunks up to which a tenant that has all of them is searched exactly"
    )
    postgres_pool_size: int = Field(4, ge=1, le=256, description="connections to PostgreSQL, held open")
    postgres_connect_timeout_s: float = Field(
        3.0, gt=0, le=60, description="seconds an attempt to connect to PostgreSQL may take"
    )
    embed_model_path: str = Field("", description="folder of the embedding model; empty: the one that is installed")
    embed_threads: int = Field(1, ge=1, le=64, description="processor threads a pass of the embedder may use")
    embed_queue_size: int = Field(512, ge=1, le=65_536, description="most texts waiting to be embedded")
    ingest_max_file_bytes: int = Field(
        8_388_608, ge=1024, le=1_073_741_824, description="largest document that is ingested, bytes"
    )
    document_max_chunks: int = Field(
        256, ge=1, le=100_000, description="most chunks of a document that a tenant puts over the API"
    )
    documents_per_tenant: int = Field(
        10_000, ge=0, le=2**53, description="documents that a tenant may keep, where the tenants file says nothing"
    )
    documents_per_tenant_bytes: int = Field(
        268_435_456, ge=0, le=2**53, description="bytes of text that they may have in their chunks"
    )
    chunk_tokens: int = Field(200, ge=32, le=254, description="most tokens in a chunk, its headings included")
    chunk_overlap_tokens: int = Field(30, ge=0, le=127, description="tokens a chunk repeats of the one before")

    @field_validator("semantic_threshold")
    @classmethod
    def _threshold_is_safe(cls, threshold: float) -> float:
        if 0 < threshold < MIN_THRESHOLD:
            raise ValueError(f"below {MIN_THRESHOLD} too many answers were measured to be wrong; 0 turns it off")
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
        description="PostgreSQL as the owner of the schema, for `services.retrieval.migrate` alone",
    )
    postgres_migrate_password_file: Path | None = Field(
        None, description="file with the password of POSTGRES_MIGRATE_URL, which then has none"
    )
    postgres_monitor_url: str = Field(
        "",
        pattern=r"^(postgres(ql)?://.*)?$",
        description="PostgreSQL as the user of a metrics exporter, who is made and may read statistics; empty for none",
    )
    postgres_monitor_password_file: Path | None = Field(
        None, description="file with the password of POSTGRES_MONITOR_URL, which then has none"
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
