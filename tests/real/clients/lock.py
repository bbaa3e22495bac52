"""Write the pins of the clients: `python -m tests.real.clients.lock [NAME...]`, after `requires` of a row has changed.

`uv pip compile` finds the versions and the SHA-256 of every file of each (network). A block for each package, the
client's own first. torch and what its CUDA build brings are left out: the installer takes torch without a hash.
"""

from __future__ import annotations

import re
import subprocess
import sys

from loadtests.paths import ROOT
from tests.real.clients.table import CLIENTS, PLACE, Client

OPTIONS = (
    *("pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--no-build"),
    *("--generate-hashes", "--no-emit-index-url", "--no-annotate", "--no-header", "--no-emit-package", "pip"),
)
BLOCK = re.compile(r"^\S.*\n(?:[ \t].*\n)*", re.MULTILINE)
TORCH = re.compile(r"(torch|triton|cuda-.*|nvidia-(?!ml-py).*)==")


def locked(client: Client) -> str:
    """The lock file of a client. Raises CalledProcessError where uv fails; its own message says why."""
    command = [str(ROOT / ".venv" / "bin" / "uv"), *OPTIONS, "-"]
    asked = "\n".join((*client.requires, *client.unhashed))
    found = subprocess.run(command, input=asked, text=True, stdout=subprocess.PIPE, check=True, cwd=PLACE.pins).stdout
    blocks = [block for block in BLOCK.findall(found) if not TORCH.match(block)]
    first = client.requires[0].split("[")[0].split("==")[0] + "=="
    return "".join(sorted(blocks, key=lambda block: not block.startswith(first)))


def main(names: list[str]) -> int:
    for client in CLIENTS:
        if not names or client.name in names:
            (PLACE.pins / f"{client.name}.txt").write_text(locked(client), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
