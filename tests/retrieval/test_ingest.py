"""Ingest over a real database: idempotent, honest about bad files, and in step with the folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from services.retrieval.database import SCHEMA_VERSION, connect
from services.retrieval.documents import UnreadableDocument
from services.retrieval.files import Fault, find, read
from services.retrieval.ingest import IngestFailed, exit_status
from services.retrieval.progress import IngestSummary
from tests.retrieval.corpus import BREAD, RIVER, Recorder, ingested, outcome, settings_for, take_in, write


def query(url: str, sql: str, *arguments: object) -> list[Any]:
    async def ask() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()

    return asyncio.run(ask())


def corpus_version(url: str, tenant: str = "demo") -> int:
    ((version,),) = query(url, "SELECT version FROM corpora WHERE tenant = $1", tenant)
    return int(version)


def test_a_second_run_embeds_nothing_and_leaves_the_version_alone(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, guide_md=RIVER, sub__bread_txt=BREAD)
    first = ingested(settings, folder)
    assert outcome(first) == (2, 0, 0, 0)
    assert first.embedded == 3
    version = corpus_version(postgres_url)
    second = ingested(settings, folder)
    assert outcome(second) == (0, 0, 2, 0)
    assert second.embedded == 0
    assert corpus_version(postgres_url) == version
    assert query(postgres_url, "SELECT doc_id, title FROM documents ORDER BY doc_id") == [
        ("guide.md", "Weir"),
        ("sub/bread.txt", "bread"),
    ]


def test_what_changed_is_replaced_whole_what_has_gone_is_removed_and_the_version_grows(
    postgres_url: str, tmp_path: Path
) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER, b_md=BREAD)
    ingested(settings, folder)
    before = corpus_version(postgres_url)
    write(folder, a_md="# Weir\n\nOnly this is left.\n")
    (folder / "b.md").unlink()
    assert outcome(ingested(settings, folder)) == (0, 1, 0, 1)
    assert query(postgres_url, "SELECT doc_id, ordinal, text FROM chunks") == [
        ("a.md", 0, "Weir\n\nOnly this is left.")
    ]
    assert corpus_version(postgres_url) > before


def test_without_prune_what_has_gone_stays(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER, b_md=BREAD)
    ingested(settings, folder)
    (folder / "b.md").unlink()
    assert outcome(ingested(settings, folder, prune=False)) == (0, 0, 1, 0)


def test_only_documents_of_the_folder_that_was_named_are_removed(postgres_url: str, tmp_path: Path) -> None:
    settings = settings_for(postgres_url)
    one, two = write(tmp_path / "one", a_md=RIVER), write(tmp_path / "two", b_md=BREAD)
    ingested(settings, one)
    assert outcome(ingested(settings, two)) == (1, 0, 0, 0)
    ingested(settings, one / "a.md")
    assert query(postgres_url, "SELECT doc_id FROM documents ORDER BY 1") == [("a.md",), ("b.md",)]


def test_a_folder_that_is_suddenly_empty_removes_nothing(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER)
    ingested(settings, folder)
    (folder / "a.md").unlink()
    summary = ingested(settings, folder)
    assert outcome(summary) == (0, 0, 0, 0)
    assert exit_status(summary) == 1
    assert query(postgres_url, "SELECT count(*) FROM documents") == [(1,)]


def test_a_folder_that_has_moved_is_recognised_and_not_embedded_again(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path / "old", a_md=RIVER)
    ingested(settings, folder)
    moved = folder.rename(tmp_path / "new")
    summary = ingested(settings, moved)
    assert (outcome(summary), summary.embedded) == ((0, 0, 1, 0), 0)
    assert query(postgres_url, "SELECT root FROM documents") == [(str(moved),)]


def test_bad_files_are_named_skipped_and_do_not_take_the_good_ones_along(postgres_url: str, tmp_path: Path) -> None:
    settings = settings_for(postgres_url, ingest_max_file_bytes=1024)
    folder = write(
        tmp_path, good_md=RIVER, nul_txt=b"a\0b", latin_txt=b"caf\xe9", broken_pdf=b"%PDF-1.4 no", big_md="x " * 1024,
        empty_md="", notes_docx=b"PK", _hidden_md=RIVER,
    )  # fmt: skip
    (folder / ".hidden.md").write_text("# Secret")
    (folder / "outside.md").symlink_to("/etc/hostname")
    summary = ingested(settings, folder, tmp_path / "nowhere")
    assert summary.added == 2
    assert exit_status(summary) == 3
    reasons = {Path(fault.path).name: fault.reason for fault in summary.skipped}
    assert reasons == {
        "nul.txt": "contains NUL bytes: it is not text",
        "latin.txt": "is not UTF-8 (byte 3)",
        "broken.pdf": reasons["broken.pdf"],
        "big.md": "is larger than 1,024 bytes (INGEST_MAX_FILE_BYTES)",
        "empty.md": "contains no text",
        "outside.md": "is a link that leads out of the folder",
        "nowhere": "does not exist",
    }


def test_a_document_whose_file_has_become_bad_stays_as_it_was(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER, b_md=BREAD)
    ingested(settings, folder)
    write(folder, b_md=b"\xff")
    summary = ingested(settings, folder)
    assert (outcome(summary), len(summary.skipped)) == ((0, 0, 1, 0), 1)
    assert query(postgres_url, "SELECT count(*) FROM documents") == [(2,)]


def test_tenants_have_documents_and_versions_of_their_own(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER)
    ingested(settings, folder, tenant="acme")
    version = corpus_version(postgres_url, "acme")
    assert outcome(ingested(settings, folder, tenant="rival")) == (1, 0, 0, 0)
    assert corpus_version(postgres_url, "acme") == version


def test_other_chunk_sizes_embed_everything_anew(postgres_url: str, tmp_path: Path) -> None:
    folder = write(tmp_path, a_md=RIVER)
    ingested(settings_for(postgres_url), folder)
    assert outcome(ingested(settings_for(postgres_url, chunk_tokens=100), folder)) == (0, 1, 0, 0)


def test_a_dry_run_names_what_would_change_and_writes_nothing(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER, b_md=BREAD, c_md=BREAD)
    ingested(settings, folder)
    everything = "SELECT doc_id, content_hash, version FROM documents ORDER BY doc_id"
    before, version = query(postgres_url, everything), corpus_version(postgres_url)
    write(folder, a_md=BREAD, d_md=RIVER)
    (folder / "c.md").unlink()
    recorder = Recorder()
    summary = ingested(settings, folder, dry_run=True, recorder=recorder)
    assert (outcome(summary), summary.embedded) == ((1, 1, 1, 1), 3)
    assert recorder.changes == [("update", "a.md", 1), ("add", "d.md", 2), ("remove", "c.md", 0)]
    assert (query(postgres_url, everything), corpus_version(postgres_url)) == (before, version)
    assert outcome(ingested(settings, folder)) == outcome(summary)


async def _schema(url: str) -> None:
    (await connect(url, timeout_s=20, application="test")).terminate()


def test_vectors_that_do_not_fit_into_the_schema_are_told_before_anything_is_embedded(
    postgres_url: str, tmp_path: Path
) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER)
    asyncio.run(_schema(postgres_url))
    query(postgres_url, "ALTER TABLE vectors DROP COLUMN embedding")
    query(postgres_url, "ALTER TABLE vectors ADD COLUMN embedding halfvec(768)")
    recorder = Recorder()
    with pytest.raises(IngestFailed, match="makes vectors of 384 numbers, and this database holds vectors of 768: set"):
        ingested(settings, folder, recorder=recorder)
    assert recorder.steps == []


def test_progress_only_grows_and_ends_at_its_total(postgres_url: str, tmp_path: Path) -> None:
    recorder = Recorder()
    folder = write(tmp_path, a_md=RIVER, b_txt="\n\n".join([BREAD * 10] * 5), c_md=BREAD)
    ingested(settings_for(postgres_url), folder, recorder=recorder)
    for step in ("read", "embed"):
        done = [done for name, done, _ in recorder.steps if name == step]
        assert done == sorted(done)
        assert {total for name, _, total in recorder.steps if name == step} == {done[-1]}
    assert len(recorder.summaries) == 1


def test_two_ingests_of_one_tenant_at_once_are_refused_and_of_two_are_not(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER)

    async def scenario() -> None:
        holder = await connect(postgres_url, timeout_s=5, application="test")
        await holder.execute("SELECT pg_advisory_lock(hashtextextended('weir ingest demo', 0))")
        with pytest.raises(IngestFailed, match="another ingest for demo is running"):
            await take_in(settings, folder)
        assert (await take_in(settings, folder, tenant="other")).added == 1
        holder.terminate()

    asyncio.run(scenario())


def test_services_that_start_together_make_one_schema(postgres_url: str) -> None:
    async def scenario() -> None:
        connecting = (connect(postgres_url, timeout_s=20, application="test") for _ in range(5))
        for connection in await asyncio.gather(*connecting):
            assert await connection.fetchval("SELECT version FROM weir_schema") == SCHEMA_VERSION
            connection.terminate()

    asyncio.run(scenario())


def test_a_database_of_a_later_version_is_left_alone(postgres_url: str, tmp_path: Path) -> None:
    settings, folder = settings_for(postgres_url), write(tmp_path, a_md=RIVER)
    ingested(settings, folder)
    query(postgres_url, "UPDATE weir_schema SET version = 99")
    with pytest.raises(
        IngestFailed, match=f"the schema is version 99, this program knows {SCHEMA_VERSION}: upgrade it"
    ):
        ingested(settings, folder)


@pytest.mark.sockets
def test_an_unreachable_database_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(IngestFailed, match="POSTGRES_URL: the database cannot be used: ConnectionRefusedError"):
        ingested(settings_for("postgresql://weir:secret@127.0.0.1:1/weir"), write(tmp_path, a_md=RIVER))


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.md")
    with pytest.raises(UnreadableDocument, match="is not a regular file"):
        read(tmp_path / "pipe.md", 1024)


def test_two_files_of_one_ingest_cannot_have_one_id(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", a_md=RIVER), write(tmp_path / "two", a_md=BREAD)
    found = find([one, two])
    assert [source.doc_id for source in found.sources] == ["a.md"]
    assert found.faults == [Fault(str(two / "a.md"), "another file of this ingest has the id a.md already")]


@pytest.mark.parametrize(
    ("summary", "status"),
    [
        (IngestSummary("demo", added=1), 0),
        (IngestSummary("demo", unchanged=1), 0),
        (IngestSummary("demo"), 1),
        (IngestSummary("demo", skipped=[Fault("a.md", "why")]), 1),
        (IngestSummary("demo", unchanged=1, skipped=[Fault("a.md", "why")]), 3),
    ],
)
def test_the_exit_status_tells_all_some_and_nothing_apart(summary: IngestSummary, status: int) -> None:
    assert exit_status(summary) == status
