"""The tiny model in transformers' form: `python tinymodel.py FOLDER`, in an environment with torch and transformers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from services.worker.engines.torch import tiny

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=Path(sys.argv[1]).parent) as cache:
        tiny.build(Path(cache)).rename(sys.argv[1])
