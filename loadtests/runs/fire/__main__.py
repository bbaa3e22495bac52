"""`python -m loadtests.runs.fire [--only CASE]... [--out FOLDER]`: play the cases, write fire.md, fire.json.

The page is written when every case was played, or wherever `--out` says. A missed target is a result, not a failure:
the exit status is 0, and 1 where a case could not be played.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadtests.cluster import cpu
from loadtests.cluster.processes import run
from loadtests.report import machine
from loadtests.report.console import say, why
from loadtests.runs.drill import drill
from loadtests.runs.fire import report
from loadtests.runs.fire.cases import CASES, Case, honesty
from loadtests.runs.fire.report import Result
from loadtests.runs.judged import RESULTS

CASE_WITHIN_S = 300.0
CALM_WITHIN_S = 30.0


def main() -> int:
    wanted = _arguments()
    chosen = [case for case in CASES if not wanted.only or case.name in wanted.only]
    if wanted.list:
        say("\n".join(f"{case.name:<18} {case.about}" for case in CASES))
        return 0
    on = machine.describe()
    results = run(_all(chosen))
    say(f"\n{report.summary(results)}\n{on}")
    folder = wanted.out or (RESULTS if len(chosen) == len(CASES) else None)
    if folder is not None:
        _write(folder, results, on, wanted.only)
    return 1 if any(result.fault for result in results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.runs.fire", description="The router under fire.")
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, metavar="CASE", help=f"one of {', '.join(names)}")
    parser.add_argument("--out", type=Path, help="write fire.md and fire.json into this folder, whatever was played")
    parser.add_argument("--list", action="store_true", help="list the cases")
    return parser.parse_args()


async def _all(chosen: Sequence[Case]) -> list[Result]:
    results = []
    if warned := await cpu.warning():
        say(warned)
    for number, case in enumerate(chosen, start=1):
        say(f"\n{number}/{len(chosen)} {case.name}: {case.about}")
        results.append(await _until_believable(case))
        say("\n".join(report.lines(results[-1])))
    return results


async def _until_believable(case: Case) -> Result:
    """A run in which the client was late says nothing about the router; whether a target was missed plays no part."""
    await cpu.calm(CALM_WITHIN_S)
    result = await play(case)
    for plays in range(2, report.MOST_PLAYS + 1):
        if result.fault or result.believable:
            break
        say(f"  once more ({plays} of {report.MOST_PLAYS}): the client itself was late")
        await cpu.calm(CALM_WITHIN_S)
        result = replace(await play(case), plays=plays)
    return result


async def play(case: Case) -> Result:
    """One case on a stand of its own. What goes wrong is told, and the next case has its turn."""
    try:
        async with asyncio.timeout(CASE_WITHIN_S), drill(case.shape, case.tenants, say) as made:
            figures = await case.play(made)
            return Result(case, made.capacity, [*figures, *honesty(case, made.runs)], made.runs)
    except TimeoutError:
        return Result(case, None, [], [], f"not over after {CASE_WITHIN_S:g} s")
    except (OSError, RuntimeError, ExceptionGroup) as error:
        return Result(case, None, [], [], why(error))


def _write(folder: Path, results: Sequence[Result], on: str, only: Sequence[str] | None) -> None:
    arguments = " ".join(f"--only {name}" for name in only or ())
    command = f'make fire ARGS="{arguments}"' if arguments else "make fire"
    folder.mkdir(parents=True, exist_ok=True)
    page = report.page(results, command=command, machine=on, cores=os.cpu_count() or 1)
    (folder / "fire.md").write_text(page, encoding="utf-8")
    told = {"machine": on, "cases": [result.as_dict() for result in results]}
    (folder / "fire.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    say(f"Written to {folder}/fire.md and fire.json.")


if __name__ == "__main__":
    raise SystemExit(main())
