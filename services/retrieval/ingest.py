"""`python -m services.retrieval.ingest`: documents are chunked, embedded, and kept in step with the files.

    ingest PATH...             add new and changed files, remove documents whose files are gone: intake.py
    ingest --reembed           embed stored chunks with this model, without files: reembed.py
    ingest --forget-others     after that, once no service uses another model, remove the others' vectors

A second run over the same files embeds nothing: a digest of bytes and chunking identifies a document, the model's
fingerprint its vectors. Each document is written at once, so a run that was stopped or killed continues where it was.

Exit status: 0 all done; 1 nothing could be done; 2 wrong usage or settings; 3 done, but something was skipped or is
left, with the reasons; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import typer

from services.retrieval.config import RetrievalSettings
from services.retrieval.database import SchemaTooNew, connect
from services.retrieval.intake import Ingest
from services.retrieval.minilm import MiniLM
from services.retrieval.modelfolder import ModelUnusable, find_model, shape_of
from services.retrieval.pool import describe
from services.retrieval.progress import IngestSummary, ProgressStyle, Reembedded, Reporter, reporter
from services.retrieval.reembed import Completing, forget_others, reembed
from services.retrieval.vectors import COLUMN_DIMENSIONS, Vectors, incompatibility
from services.retrieval.writing import Corpus
from services.runtime.settings import NO_LISTENER, load

EXIT_FAILED = 1
EXIT_SKIPPED_SOME = 3
EXIT_STOPPED = 130
DEFAULT_TENANT = "demo"


class IngestFailed(Exception):
    """The command cannot go on; the message says why and what to do."""


@asynccontextmanager
async def opened(settings: RetrievalSettings) -> AsyncIterator[tuple[MiniLM, Any]]:
    """The model, and a connection to a database with room for its vectors. Raises IngestFailed, in the block too."""
    try:
        folder = find_model(settings.embed_model_path)
        shape_of(folder, chunk_tokens=settings.chunk_tokens)
        model = MiniLM(folder, threads=settings.embed_threads)
        timeout_s = settings.postgres_connect_timeout_s
        connection = await connect(settings.database_url, timeout_s=timeout_s, application="weir-ingest")
    except ModelUnusable as error:
        raise IngestFailed(str(error)) from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, SchemaTooNew) as error:
        raise IngestFailed(f"POSTGRES_URL: the database cannot be used: {describe(error)}") from None
    try:
        if fault := incompatibility(await connection.fetchval(COLUMN_DIMENSIONS), model.name):
            raise IngestFailed(fault)
        yield model, connection
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise IngestFailed(f"the database was lost: {describe(error)}; run the command again to continue") from None
    finally:
        connection.terminate()


async def ingest(
    settings: RetrievalSettings, paths: Sequence[Path], *, tenant: str, prune: bool, dry_run: bool, report: Reporter
) -> IngestSummary:
    """Ingest these paths for this tenant. Raises IngestFailed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    summary = IngestSummary(tenant, dry_run)
    async with opened(settings) as (model, connection):
        corpus = Corpus(connection, tenant)
        if not dry_run and not await corpus.lock():
            raise IngestFailed(f"another ingest for {tenant} is running: wait for it, or stop it")

        def embedded(number: int) -> None:
            summary.embedded += number

        completing = Completing(model, Vectors(connection, tenant, model.fingerprint), embedded)
        with report:
            await Ingest(settings, model, corpus, completing, summary, report).run(paths, prune=prune)
    summary.seconds = round(loop.time() - began, 3)
    report.finished(summary)
    return summary


async def revise(
    settings: RetrievalSettings, *, tenant: str | None, forget: bool, dry_run: bool, report: Reporter
) -> Reembedded:
    """Reembed, or forget other models' vectors, for this tenant or for all. Raises IngestFailed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with opened(settings) as (model, connection):
        summary = Reembedded(model.name, dry_run)
        tenants = None if tenant is None else [tenant]
        with report:
            work = forget_others if forget else reembed
            await work(connection, model, tenants, summary, report)
    summary.seconds = round(loop.time() - began, 3)
    report.finished(summary)
    return summary


def command(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Folders, or single files: .md .txt .rst .html .pdf", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="The tenant: `demo` by default; with --reembed or --forget-others all."),
    ] = None,
    prune: Annotated[bool, typer.Option(help="Remove documents whose file has gone from a named folder.")] = True,
    reembed: Annotated[
        bool, typer.Option("--reembed", help="Embed with this model what is in already. It takes no paths.")
    ] = False,
    forget_others: Annotated[
        bool,
        typer.Option("--forget-others", help="Remove other models' vectors of what this one has embedded. No paths."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name what would be done, and do nothing.")] = False,
    progress: Annotated[
        ProgressStyle, typer.Option(help="A bar on a terminal, JSON lines, or only the result.")
    ] = ProgressStyle.AUTO,
) -> None:
    """Chunk documents, embed them, and keep a tenant's corpus in step with the files."""
    if tenant is not None and (not tenant.strip() or len(tenant) > 128 or "\x00" in tenant):
        raise typer.BadParameter("is empty, or longer than 128 characters", param_hint="--tenant")
    if reembed and forget_others:
        raise typer.BadParameter("first --reembed, then, when every service has the model, --forget-others")
    if (reembed or forget_others) == bool(paths):
        raise typer.BadParameter("either paths, or --reembed, or --forget-others", param_hint="PATHS")
    settings = load(RetrievalSettings, **NO_LISTENER)
    report = reporter(progress)
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs damage that it repairs
    if paths:
        of_tenant = tenant or DEFAULT_TENANT
        _run(ingest(settings, paths, tenant=of_tenant, prune=prune, dry_run=dry_run, report=report))
    _run(revise(settings, tenant=tenant, forget=forget_others, dry_run=dry_run, report=report))


def _run(work: Coroutine[Any, Any, IngestSummary | Reembedded]) -> None:
    try:
        summary = asyncio.run(work)
    except IngestFailed as error:
        sys.stderr.write(f"ingest: {error}\n")
        raise typer.Exit(EXIT_FAILED) from None
    except KeyboardInterrupt:
        sys.stderr.write("ingest: stopped; ingested documents are kept, and the next run continues\n")
        raise typer.Exit(EXIT_STOPPED) from None
    raise typer.Exit(exit_status(summary))


def exit_status(summary: IngestSummary | Reembedded) -> int:
    """The exit status; the docstring of the module lists them."""
    if isinstance(summary, IngestSummary):
        if summary.usable == 0:
            return EXIT_FAILED
        return EXIT_SKIPPED_SOME if summary.skipped else 0
    return EXIT_SKIPPED_SOME if summary.skipped or summary.left else 0


def main() -> None:
    typer.run(command)


if __name__ == "__main__":
    main()
