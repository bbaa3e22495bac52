"""`python -m loadtests.runs.peers [--only CASE]... [--gateway NAME]... [--out FOLDER] [--fresh] [--list]`

Plays every load through every gateway that is here or that pip can fetch; the others are left out, with a word. What
has been played is kept in `out/peers.json`, so a run that was cut short goes on where it stopped. The page is written
when nothing is missing any more, or wherever `--out` says. The exit status is 1 where a load could not be played.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from loadtests.cluster import cpu
from loadtests.cluster.processes import run
from loadtests.cluster.stand import stand
from loadtests.load import capacity
from loadtests.paths import ROOT
from loadtests.report import machine
from loadtests.report.console import say, why
from loadtests.runs.peers import environments, state, table
from loadtests.runs.peers.cases import CASES, SHAPE, Case, PeerDrill
from loadtests.runs.peers.cell import Cell
from loadtests.runs.peers.gateways import GATEWAYS, Gateway, haproxy, haproxy_version

RESULTS = ROOT / "docs" / "results"
STATE = ROOT / "out" / "peers.json"
WORKER = "loadtests.runs.peers.worker"
CELL_WITHIN_S = 240.0
MEASURE_S = 3.0
WARM_UP_S = 0.5
MOST_REPLAYS = 6  # of loads in which the client was late, over a whole run


def main() -> int:
    wanted = _arguments()
    if wanted.list:
        say("\n".join(f"{case.name:<16} {case.about}" for case in CASES))
        say("\n".join(f"{gateway.name:<16} {gateway.about}" for gateway in GATEWAYS))
        return 0
    gateways = [each for each in GATEWAYS if not wanted.gateway or each.name in wanted.gateway]
    here = _here(gateways)
    chosen = [(case.name, each.name) for case in CASES if not wanted.only or case.name in wanted.only for each in here]
    every = [(case.name, each.name) for case in CASES for each in GATEWAYS if not each.missing()]
    on = machine.describe()
    kept, pairs = state.to_play({} if wanted.fresh else state.read(wanted.state), every, chosen, on)
    if kept and len(pairs) < len(every):
        say(f"{len(kept)} of {len(every)} loads are kept from {wanted.state}; --fresh plays all of them again.")
    run(_all(pairs, kept, on, wanted.state))
    _tell(kept, pairs, every, wanted.out)
    return 1 if any(kept[pair].fault for pair in pairs) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.runs.peers", description="Weir and others, side by side."
    )
    cases, gateways = [case.name for case in CASES], [gateway.name for gateway in GATEWAYS]
    parser.add_argument("--only", action="append", choices=cases, metavar="CASE", help=f"one of {', '.join(cases)}")
    parser.add_argument(
        "--gateway", action="append", choices=gateways, metavar="NAME", help=f"one of {', '.join(gateways)}"
    )
    parser.add_argument("--out", type=Path, help="write peers.md and peers.json into this folder, whatever was played")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has kept")
    parser.add_argument("--state", type=Path, default=STATE, help="where what was played is kept")
    parser.add_argument("--list", action="store_true", help="list the loads and the gateways")
    return parser.parse_args()


def _here(gateways: Sequence[Gateway]) -> list[Gateway]:
    """Those that can be run, installed first where pip can do it."""
    for gateway in gateways:
        if gateway.package:
            environments.make(gateway.package, say)
        if missing := gateway.missing():
            say(f"Left out: {gateway.name}, since {missing}.")
    return [gateway for gateway in gateways if not gateway.missing()]


async def _all(pairs: Sequence[state.Pair], kept: state.Cells, on: str, file: Path) -> None:
    """Play the pairs; what was found is in `kept`, and in the file, as soon as it is found."""
    if warned := await cpu.warning():
        say(warned)
    cases, gateways = {case.name: case for case in CASES}, {each.name: each for each in GATEWAYS}
    began, replays = monotonic(), MOST_REPLAYS
    for number, (case, gateway) in enumerate(pairs):
        left = f", about {(monotonic() - began) / number * (len(pairs) - number) / 60:.0f} min left" if number else ""
        say(f"{number + 1}/{len(pairs)} {gateway}: {cases[case].about}{left}")
        found = await _play(cases[case], gateways[gateway], on)
        if found.doubtful and replays:
            replays -= 1
            say("  once more: the client itself was late")
            found = await _play(cases[case], gateways[gateway], on)
        kept[found.key] = found
        state.write(file, kept)


async def _play(case: Case, gateway: Gateway, on: str) -> Cell:
    """One load through one gateway, on a stand of its own."""
    try:
        async with (
            asyncio.timeout(CELL_WITHIN_S),
            stand(SHAPE, case.tenants, router=False, worker=WORKER) as made,
        ):
            measured = await capacity.measure(made, MEASURE_S, WARM_UP_S)
            await gateway.start(made, case.tenants, case.deadlines)
            drill = PeerDrill(made, measured, say, key=gateway.key)
            await drill.warm_up(gateway.warm_up_s)
            figures = await case.play(drill)
            doubtful = any(not run.figures.valid for run in drill.runs)
            return Cell(case.name, gateway.name, figures, doubtful, "", on, [run.as_dict() for run in drill.runs])
    except TimeoutError:
        return _failed(case, gateway, on, f"not over after {CELL_WITHIN_S:g} s")
    except (OSError, RuntimeError, ExceptionGroup) as error:
        return _failed(case, gateway, on, why(error))


def _failed(case: Case, gateway: Gateway, on: str, fault: str) -> Cell:
    say(f"  could not be played: {fault}")
    return Cell(case.name, gateway.name, fault=fault, on=on)


def _tell(kept: state.Cells, pairs: Sequence[state.Pair], every: Sequence[state.Pair], out: Path | None) -> None:
    """The table of what was played; the page if nothing is missing, or where it was asked for."""
    say("\n" + "\n".join(table.rows([kept[pair] for pair in pairs])))
    missing = [pair for pair in every if pair not in kept or kept[pair].fault]
    if missing and out is None:
        say(f"\nNo page yet: {len(missing)} of {len(every)} loads are missing.")
        return
    folder, cells = out or RESULTS, [kept[pair] for pair in every if pair in kept]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.md").write_text(table.page(cells, versions=versions()), encoding="utf-8")
    told = {"versions": versions(), "cells": [cell.as_dict() for cell in cells]}
    (folder / "peers.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    say(f"\nWritten to {folder}/peers.md and peers.json.")


def versions() -> str:
    """What the gateways are, as they or their pins say."""
    path = haproxy()
    fetched = [environments.versions(each.package) for each in GATEWAYS if each.package and not each.missing()]
    return ", ".join([*([haproxy_version(path)] if path else []), *fetched])


if __name__ == "__main__":
    raise SystemExit(main())
