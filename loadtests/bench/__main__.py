"""`python -m loadtests.bench [NAME]... [--OPTION VALUE]...`: measure, and show figures with their targets.

    python -m loadtests.bench                      the parts of docs/results/bench.md
    python -m loadtests.bench --publish            the same, and write that page
    python -m loadtests.bench recall --rows 5000   one benchmark, with an option of its own
    python -m loadtests.bench recall --help        its options
    python -m loadtests.bench --list               all benchmarks

`--publish` writes a benchmark's page, its figures as JSON and its pictures into docs/results; `--out` names another
folder. `--quick` is a short run that tests the benchmark itself, and is not published. A missed target is a result, not
a failure: the exit status is 0.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any, get_args, get_origin

import msgspec
from rich.console import Console

from loadtests.bench import summary
from loadtests.bench.table import BENCHES, PARTS, Seconds, measured, options, quick
from loadtests.paths import RESULTS
from loadtests.report.machine import describe
from loadtests.report.progress import progress
from loadtests.report.result import Result, write

PAUSE_S = 1.0  # sockets close and caches are written back before the next benchmark
WIDE_ENOUGH_FOR_NOTES = 140
WHOLE = "bench"
"""The name of the page that combines several benchmarks."""


def main(arguments: Sequence[str] | None = None) -> int:
    typed = list(sys.argv[1:] if arguments is None else arguments)
    names = list(dict.fromkeys(_names(typed)))
    parser = _parser(names)
    given = parser.parse_args(typed)
    if given.list:
        print("\n".join(f"{name:<15} {bench.takes_s:>6.0f} s  {bench.about}" for name, bench in BENCHES.items()))
        return 0
    if given.publish and (given.quick or getattr(given, "only", None)):
        parser.error("--publish: a short or partial run is not published; --out FOLDER writes it elsewhere")
    own = {name: value for name, value in vars(given).items() if name not in COMMON and value not in (None, [])}
    try:
        for name in names or PARTS:
            msgspec.convert(_chosen(name, own, given.quick, part=not names), options(name), strict=False)
    except msgspec.ValidationError as error:
        parser.error(str(error))
    _measure(names, own, given)
    return 0


COMMON = ("names", "quick", "publish", "out", "list")


def _names(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments before the first option."""
    for argument in arguments:
        if argument.startswith("-"):
            return
        yield argument


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], metavar="NAME", help="which; see --list")
    parser.add_argument("--list", action="store_true", help="list the benchmarks, with their estimated durations")
    parser.add_argument("--quick", action="store_true", help="a short run that tests the benchmark itself")
    parser.add_argument("--publish", action="store_true", help="write the page into docs/results")
    parser.add_argument("--out", type=Path, help="write the page into this folder")
    known = [name for name in names if name in BENCHES]
    for name, about in _own(known).items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, **about)
    return parser


def _own(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The options of these benchmarks, as keyword arguments of `add_argument`."""
    own = {}
    for struct in map(options, names) if names else (Seconds,):
        for field in msgspec.structs.fields(struct):
            kind, *metas = get_args(field.type) if get_args(field.type) else (field.type,)
            if get_origin(field.type) is tuple:
                kind, metas = tuple, []
            about = next((meta.description for meta in metas if isinstance(meta, msgspec.Meta)), "") or ""
            shown = "" if field.default in (False, (), "") else f" (default {field.default})"
            own[field.name] = {"help": f"{about}{shown}".strip().replace("%", "%%"), **_action(kind)}
    return own


def _action(kind: Any) -> dict[str, Any]:
    if kind is bool:
        return {"action": "store_true", "default": None}
    return {"action": "append"} if get_origin(kind) is tuple or kind is tuple else {}


def _chosen(name: str, own: Mapping[str, Any], short: bool, *, part: bool) -> dict[str, Any]:
    """The options of one benchmark: the given ones that it has; as a part of bench.md its brief ones."""
    fields = {field.name for field in msgspec.structs.fields(options(name))}
    chosen = {key: value for key, value in own.items() if key in fields}
    return {**(quick(name) if short else {}), **chosen, **(BENCHES[name].brief if part else {})}


def _measure(names: Sequence[str], own: Mapping[str, Any], given: argparse.Namespace) -> None:
    console, machine = Console(), describe()
    folder = given.out or (RESULTS if given.publish else None)
    found: dict[str, Result] = {}
    for at, name in enumerate(names or PARTS):
        sleep(PAUSE_S if at else 0)
        bench = BENCHES[name]
        with progress(name, bench.takes_s if names else bench.brief_s or bench.takes_s) as say:
            found[name] = measured(name, _chosen(name, own, given.quick, part=not names), say)
    parts = {name: result.figures for name, result in found.items()}
    console.print(summary.table(parts, notes=console.width >= WIDE_ENOUGH_FOR_NOTES))
    console.print(f"\n{machine}\n", soft_wrap=True, highlight=False)
    results = found if names else {WHOLE: summary.result(parts, float(own.get("seconds", Seconds().seconds)))}
    for name, result in results.items():
        for path in (
            ()
            if folder is None
            else write(result, folder / name, command=_command(name, own, given.quick), machine=machine)
        ):
            console.print(f"Written: {path}", highlight=False, soft_wrap=True)


def _command(name: str, own: Mapping[str, Any], short: bool) -> str:
    arguments = [name] if name != WHOLE else []
    for option, value in own.items():
        for one in value if isinstance(value, list) else [value]:
            arguments += [f"--{option.replace('_', '-')}", *([] if one is True else [str(one)])]
    arguments += ["--quick"] if short else []
    if name == WHOLE:
        return f"make bench ARGS='{shlex.join(arguments)}'" if arguments else "make bench"
    return shlex.join(["python", "-m", "loadtests.bench", *arguments])


if __name__ == "__main__":
    raise SystemExit(main())
