"""A file that is read while somebody writes it is not taken for a shorter one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.router import yamlfile
from services.router.operating.reloading import SETTLED_S, TRIES, Reloading
from services.router.yamlfile import Unreadable, read_yaml
from tests.virtual import run

WHOLE = "tenants:\n- a\n- b\n"
HALF = "tenants:\n- a\n"


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the half that was read is as good YAML as the whole."""
    file = tmp_path / "tenants.yaml"
    file.write_text(HALF, encoding="ascii")
    assert read_yaml(file) == {"tenants": ["a"]}
    looked = []
    state = yamlfile.state

    def looking(descriptor: int) -> tuple[int, int, int]:
        looked.append(descriptor)
        if len(looked) == 2:  # after the reading
            file.write_text(WHOLE, encoding="ascii")
        return state(descriptor)

    monkeypatch.setattr(yamlfile, "state", looking)
    with pytest.raises(Unreadable, match="changed while it was read"):
        read_yaml(file)
    assert read_yaml(file) == {"tenants": ["a", "b"]}


class Reader(Reloading):
    """Notes what it would have read, and when."""

    def __init__(self, file: Path) -> None:
        settings: Any = type("Settings", (), {"tenants_file": file, "workers_file": None, "shared_token": b""})
        nothing: Any = None
        super().__init__(settings, nothing, nothing, nothing, nothing, nothing, nothing)
        self.file = file
        self.read: list[tuple[float, str]] = []

    async def _read_tenants(self) -> None:
        self.read.append((asyncio.get_running_loop().time(), self.file.read_text(encoding="ascii")))

    def _read_workers(self) -> None:
        pass


@pytest.mark.parametrize("pieces", [1, 5])
def test_a_file_that_is_still_being_written_is_read_once_it_is_whole(tmp_path: Path, pieces: int) -> None:
    async def main() -> None:
        file = tmp_path / "tenants.yaml"
        file.write_text("tenants:\n", encoding="ascii")
        reader = Reader(file)
        reader.begin()
        for number in range(pieces):
            await asyncio.sleep(SETTLED_S / 2)
            with file.open("a", encoding="ascii") as open_file:
                open_file.write(f"- t{number}\n")
        await asyncio.sleep(SETTLED_S * 5)
        ((_, text),) = reader.read
        assert text.count("- t") == pieces

    run(main())


def test_a_file_that_never_comes_to_rest_is_read_in_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "tenants.yaml"
        file.write_text("", encoding="ascii")
        reader = Reader(file)
        reader.begin()
        for _ in range(TRIES * 4):
            await asyncio.sleep(SETTLED_S / 2)
            with file.open("a", encoding="ascii") as open_file:
                open_file.write("x")
        assert [at for at, _ in reader.read] == [pytest.approx(TRIES * SETTLED_S)]

    run(main())
