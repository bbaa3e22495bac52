"""The page's files: a closed set, with tags, compressed where that helps, and allowed to load nothing else."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from services.console.files import MAX_FILES, Files
from services.runtime.errors import BadInput
from services.runtime.http import Exchange
from tests.console.rig import FakeWire

SCRIPT = b"'use strict';\n" * 100


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "index.html").write_bytes(b"<!doctype html>")
    (tmp_path / "vendor" / "chart.js").write_bytes(SCRIPT)
    (tmp_path / "notes.sh").write_bytes(b"rm -rf")
    (tmp_path.parent / "secret.txt").write_bytes(b"sekrit")
    return Files(tmp_path)


def get(files: Files, path: str | None, **headers: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body; without a path it is the page."""
    wire = FakeWire()
    named = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    exchange = Exchange(wire, "GET", "/console", named)
    exchange.tail = path or ""
    asyncio.run(files.page(exchange) if path is None else files.file(exchange))
    head, _, body = b"".join(wire.sent).partition(b"\r\n\r\n")
    lines = (line.partition(b": ")[::2] for line in head.split(b"\r\n")[1:])
    return exchange.status, dict(lines), body


def test_the_page_and_its_files_are_served_with_their_types(files: Files) -> None:
    assert get(files, None)[2] == b"<!doctype html>"
    status, headers, body = get(files, "vendor/chart.js")
    assert (status, body) == (200, SCRIPT)
    assert headers[b"content-type"] == b"text/javascript; charset=utf-8"


def test_nothing_may_be_loaded_from_anywhere_else(files: Files) -> None:
    for path in (None, "vendor/chart.js"):
        policy = get(files, path)[1][b"content-security-policy"]
        assert b"default-src 'self'" in policy
        assert b"unsafe" not in policy
        assert b"http" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "",
        "nothing.js",
        "notes.sh",
        "../secret.txt",
        "vendor/../index.html",
        "/etc/passwd",
        "vendor",
        "vendor/",
        "..\\secret.txt",
        "%2e%2e/secret.txt",
        "index.html\x00.js",
    ],
)
def test_a_path_leads_to_the_files_of_the_page_or_nowhere(files: Files, path: str) -> None:
    exchange = Exchange(FakeWire(), "GET", "/console/static/x", [])
    exchange.tail = path
    with pytest.raises(BadInput) as refused:
        asyncio.run(files.file(exchange))
    assert refused.value.status == 404


def test_a_browser_that_has_a_file_is_not_sent_it_again(files: Files) -> None:
    _, headers, _ = get(files, "vendor/chart.js")
    status, again, body = get(files, "vendor/chart.js", if_none_match=headers[b"etag"])
    assert (status, body) == (304, b"")
    assert again[b"etag"] == headers[b"etag"]
    assert get(files, "vendor/chart.js", if_none_match=b'"another"')[0] == 200


def test_a_tag_is_of_the_bytes_and_of_how_they_are_packed(files: Files) -> None:
    plain, packed = get(files, "vendor/chart.js"), get(files, "vendor/chart.js", accept_encoding=b"br, gzip")
    assert plain[1][b"etag"] != packed[1][b"etag"]
    assert packed[1][b"content-encoding"] == b"gzip"
    assert gzip.decompress(packed[2]) == SCRIPT
    assert len(packed[2]) < len(SCRIPT)
    assert packed[1][b"vary"] == b"accept-encoding"
    assert get(files, "vendor/chart.js", accept_encoding=b"gzip", if_none_match=packed[1][b"etag"])[0] == 304


@pytest.mark.parametrize("accepted", [b"", b"br", b"gzip;q=0", b"gzip; q=0.0, br", b"x-gzip"])
def test_who_does_not_take_gzip_gets_none(files: Files, accepted: bytes) -> None:
    assert b"content-encoding" not in get(files, "vendor/chart.js", accept_encoding=accepted)[1]


def test_what_would_not_become_smaller_is_not_packed(files: Files) -> None:
    assert b"content-encoding" not in get(files, None, accept_encoding=b"gzip")[1]


def test_without_its_files_the_console_says_where_its_data_is(tmp_path: Path) -> None:
    assert b"/console/events" in get(Files(tmp_path / "none"), None)[2]


def test_a_folder_of_too_many_files_is_not_served(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(ValueError, match="more than 64 files"):
        Files(tmp_path)


def test_the_page_that_is_shipped_is_served_from_the_package() -> None:
    assert get(Files(), None)[0] == 200
