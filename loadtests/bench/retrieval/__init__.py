"""Retrieval's figures: does an answer come in time whatever is wrong, how many a second, what does embedding cost.

    python -m loadtests.bench.retrieval        measure, and write docs/results/retrieval.md
    make bench                       the same in a short form, on a small tenant

Service, database, cache, proxies and client share the machine's cores. The tenant is generated (`corpus.py`) and is
searched through the graph however small it is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from loadtests.bench.retrieval import budget, embedding, throughput
from loadtests.bench.retrieval.stand import standing
from loadtests.report.figure import Figure

SHORT_ROWS = 5_000
SHORT_SECONDS = 3.0


async def measure(seconds: float) -> list[Figure]:
    """The short form."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with standing(Path(folder)) as stand:
            await stand.fill(SHORT_ROWS)
            figures = await embedding.measure(stand, seconds)
            figures += await throughput.measure(stand, min(seconds, SHORT_SECONDS))
            lines = await budget.measure(stand, min(seconds, SHORT_SECONDS), say=lambda _: None)
    return [*figures, *budget.figures(lines)]
