"""`make oracles`: what the code makes now beside what is pinned. Exit status 1 where there is a difference.

    make oracles                          show the differences
    make oracles ARGS="--only wire"       of one group
    make oracles WRITE=1                  pin what is made now; then read `git diff tests/oracles/pinned`

The count of bytecodes may only fall. To pin a higher one is a decision with a reason, which the file keeps:

    make oracles ARGS='--only steps --raise "each request is checked for X: +40"'
"""

from __future__ import annotations

import argparse
import sys

from tests.oracles.catalogue import ORACLES, Pinning
from tests.oracles.oracle import told
from tests.oracles.steps import ORACLE as STEPS


def main() -> int:
    """0: nothing differs, or everything was written."""
    parser = argparse.ArgumentParser(prog="make oracles", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="pin what is made now")
    parser.add_argument(
        "--only", action="append", choices=[oracle.name for oracle in ORACLES], help="may be given again"
    )
    parser.add_argument(
        "--raise", dest="reason", metavar="REASON", help="with --only steps: pin a higher count, because"
    )
    given = parser.parse_args()
    if given.reason is not None:
        print(STEPS.raise_(given.reason))
        return 0
    chosen = [oracle for oracle in ORACLES if oracle.name in (given.only or [oracle.name])]
    return max([_write(oracle) if given.write else _show(oracle) for oracle in chosen])


def _show(oracle: Pinning) -> int:
    found = oracle.differences()
    print(told(oracle.name, found, oracle.rewrite) or f"{oracle.name}: as pinned", flush=True)
    return 1 if found else 0


def _write(oracle: Pinning) -> int:
    try:
        changed = oracle.write()
    except ValueError as refusal:
        print(f"{oracle.name}: {refusal}", file=sys.stderr)
        return 1
    print(f"{oracle.name}: {', '.join(changed) or 'as pinned'}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
