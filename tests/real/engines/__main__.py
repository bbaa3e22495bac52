"""Make the environments of the inference servers: `python -m tests.real.engines [NAME...]`; without a name, all.

Each goes into `.venv/engines/` (ENGINES_DIR moves that). A build of torch for processors must be what pip finds:
docs/engines/README.md. Exit status 1 if one could not be installed; the others are.
"""

from __future__ import annotations

import sys

from loadtests.runs.matrix.environments import make_named
from tests.real.engines.table import ENGINES, PLACE

if __name__ == "__main__":
    raise SystemExit(make_named(sys.argv[1:], {engine.name: engine.package for engine in ENGINES}, PLACE))
