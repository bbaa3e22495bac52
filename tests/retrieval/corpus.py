"""Small corpora for tests that need a real database."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from services.retrieval.config import RetrievalSettings
from services.retrieval.ingest import ingest
from services.retrieval.migrate import prepare
from services.retrieval.progress import IngestSummary, Reembedded

RIVER = "# Weir\n\nA weir holds a river at its level.\n\n## Gates\n\nSluice gates open when the water rises.\n"
BREAD = "# Bread\n\nKnead the dough, let it rest for an hour, and bake it in a hot oven.\n"


class Recorder:
    """A reporter that remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []
        self.changes: list[tuple[str, str, int]] = []
        self.summaries: list[IngestSummary | Reembedded] = []

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def step(self, name: str, done: int, total: int) -> None:
        self.steps.append((name, done, total))

    def change(self, change: str, doc_id: str, chunks: int) -> None:
        self.changes.append((change, doc_id, chunks))

    def finished(self, summary: IngestSummary | Reembedded) -> None:
        self.summaries.append(summary)


def write(folder: Path, **files: str | bytes) -> Path:
    """Files named by keyword: `guide_md="..."` is guide.md; `sub__guide_md` is sub/guide.md."""
    for name, content in files.items():
        stem, _, kind = name.replace("__", "/").rpartition("_")
        path = folder / f"{stem}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


SERVICE_PASSWORD = "of a user that may do little"
NOWHERE = "@127.0.0.1:1/"


def as_service(owner_url: str, user: str = "weir_service") -> str:
    """The same database for a user with the least power, as the services have it. Its schema is up to date then."""
    password, place = quote(SERVICE_PASSWORD), owner_url.rpartition("@")[2]
    url = f"postgresql://{user}:{password}@{place}"
    with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
        thread.submit(lambda: asyncio.run(prepare(owner_url, url, timeout_s=20.0))).result()
    return url


def settings_for(postgres_url: str, redis_url: str = "redis://127.0.0.1:1/0", **changed: object) -> RetrievalSettings:
    """Settings over these servers, on free ports, for a user with the least power."""
    if NOWHERE not in postgres_url:
        postgres_url = as_service(postgres_url)
    return RetrievalSettings(
        postgres_url=postgres_url, redis_url=redis_url, retrieval_port=0, metrics_port=0, log_level="ERROR", **changed
    )


def unhurried(settings: RetrievalSettings) -> RetrievalSettings:
    """The cache may take longer than its setting allows: a machine that stands still for a second is no slow cache."""
    return settings.model_copy(update={"redis_timeout_ms": 10_000.0})


async def take_in(
    settings: RetrievalSettings,
    *paths: Path,
    tenant: str = "demo",
    prune: bool = True,
    dry_run: bool = False,
    recorder: Recorder | None = None,
) -> IngestSummary:
    """Ingest on the running loop."""
    return await ingest(settings, paths, tenant=tenant, prune=prune, dry_run=dry_run, report=recorder or Recorder())


def ingested(settings: RetrievalSettings, *paths: Path, **options: object) -> IngestSummary:
    """Ingest on a loop of its own."""
    return asyncio.run(take_in(settings, *paths, **options))  # type: ignore[arg-type]


def outcome(summary: IngestSummary) -> tuple[int, int, int, int]:
    """Added, updated, unchanged, removed."""
    return summary.added, summary.updated, summary.unchanged, summary.removed
