"""Make the environments of the clients: `python -m tests.real.clients [NAME...]`; without a name, all.

Each goes into `.venv/clients/` (CLIENTS_DIR moves that). guidellm needs torch: docs/clients.md says which build is
enough. Exit status 1 if one could not be installed; the others are.
"""

from __future__ import annotations

import sys

from loadtests.runs.matrix.environments import make_named
from tests.real.clients.table import CLIENTS, PLACE

if __name__ == "__main__":
    raise SystemExit(make_named(sys.argv[1:], {client.name: client.name for client in CLIENTS}, PLACE))
