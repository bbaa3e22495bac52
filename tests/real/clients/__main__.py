"""Make the environments of the clients: `python -m tests.real.clients [NAME...]`; without a name, all.

Each goes into `.venv/clients/` (CLIENTS_DIR moves that). guidellm needs torch: docs/clients.md says which build is
enough. Exit status 1 if one could not be installed; the others are.
"""

from __future__ import annotations

import sys

from loadtests.runs.matrix.environments import make
from tests.real.clients.table import CLIENTS, PLACE


def main(names: list[str]) -> int:
    known = [client.name for client in CLIENTS]
    if unknown := [name for name in names if name not in known]:
        print(f"there is no {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    made = [make(name, print, PLACE) for name in names or known]
    return 0 if all(made) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
