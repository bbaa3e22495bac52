"""Make the environments of the inference servers: `python -m tests.real.engines [NAME...]`; without a name, all.

Each goes into `.venv/engines/` (ENGINES_DIR moves that). A build of torch for processors must be what pip finds:
docs/engines/README.md. Exit status 1 if one could not be installed; the others are.
"""

from __future__ import annotations

import sys

from loadtests.runs.matrix.environments import make
from tests.real.engines.table import ENGINES, PLACE


def main(names: list[str]) -> int:
    known = {engine.name: engine.package for engine in ENGINES}
    if unknown := [name for name in names if name not in known]:
        print(f"there is no {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    made = [make(known[name], print, PLACE) for name in names or known]
    return 0 if all(made) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
