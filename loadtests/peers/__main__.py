"""`python -m loadtests.peers [--only CASE]... [--out FOLDER]`: Weir and HAProxy side by side.

Without HAProxy it says so and leaves with 0. The page is written when every case was played, or wherever `--out` says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from loadtests.fire import capacity, cpu, machine
from loadtests.fire.console import say, why
from loadtests.fire.drill import Drill
from loadtests.fire.processes import ROOT, run
from loadtests.fire.stand import stand
from loadtests.peers import table
from loadtests.peers.cases import CASES, SHAPE, Case
from loadtests.peers.gateways import GATEWAYS, Gateway, haproxy, haproxy_version
from loadtests.peers.table import Cell

RESULTS = ROOT / "docs" / "results"
CELL_WITHIN_S = 120.0


def main() -> int:
    wanted = _arguments()
    path = haproxy()
    if path is None:
        say("Skipped: haproxy is not installed. On Debian and Ubuntu: apt install haproxy")
        return 0
    on, version = machine.describe(), haproxy_version(path)
    chosen = [case for case in CASES if not wanted.only or case.name in wanted.only]
    cells = run(_all(chosen))
    say("\n" + "\n".join(table.rows(cells)) + f"\n\n{on}; {version}")
    folder = wanted.out or (RESULTS if len(chosen) == len(CASES) else None)
    if folder is not None:
        _write(folder, cells, on, version)
    return 1 if any(cell.fault for cell in cells) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.peers", description="Weir and HAProxy, side by side.")
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, metavar="CASE", help=f"one of {', '.join(names)}")
    parser.add_argument("--out", type=Path, help="write peers.md and peers.json into this folder, whatever was played")
    return parser.parse_args()


async def _all(chosen: Sequence[Case]) -> list[Cell]:
    cells: list[Cell] = []
    if warned := await cpu.warning():
        say(warned)
    for number, case in enumerate(chosen, start=1):
        say(f"\n{number}/{len(chosen)} {case.name}: {case.about}")
        cells += [await _play(case, gateway) for gateway in GATEWAYS]
    return cells


async def _play(case: Case, gateway: Gateway) -> Cell:
    """One case through one gateway, on a stand of its own."""
    say(f" {gateway.name}")
    try:
        async with asyncio.timeout(CELL_WITHIN_S), stand(SHAPE, case.tenants, router=False) as made:
            await gateway.start(made, case.tenants, case.deadlines)
            drill = Drill(made, await capacity.measure(made), say, gateway.route)
            return Cell(case, gateway, await case.play(drill), drill.runs)
    except TimeoutError:
        return _failed(case, gateway, f"not over after {CELL_WITHIN_S:g} s")
    except (OSError, RuntimeError, ExceptionGroup) as error:
        return _failed(case, gateway, why(error))


def _failed(case: Case, gateway: Gateway, why: str) -> Cell:
    say(f"  could not be played: {why}")
    return Cell(case, gateway, [], [], why)


def _write(folder: Path, cells: Sequence[Cell], on: str, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.md").write_text(table.page(cells, machine=on, version=version), encoding="utf-8")
    told = {"machine": on, "haproxy": version, "cells": [cell.as_dict() for cell in cells]}
    (folder / "peers.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    say(f"Written to {folder}/peers.md and peers.json.")


if __name__ == "__main__":
    raise SystemExit(main())
