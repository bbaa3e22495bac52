"""`python -m loadtests.bench.semantic`: a semantic cache's errors, in docs/results/semantic.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.bench.semantic.cost import SIZES, lookup_us, redis_us
from loadtests.bench.semantic.measure import Point, chosen, curve, look_up, read
from loadtests.bench.semantic.page import page, verdict
from loadtests.paths import RESULTS
from loadtests.report.machine import describe
from services.retrieval.minilm import Floats, MiniLM, find_model

PAGE = RESULTS / "semantic.md"


def main() -> None:
    model = MiniLM(find_model(""))

    def embed(texts: Sequence[str]) -> Floats:
        return model.embed([model.tokenize(text) for text in texts])

    found = look_up(read(), embed)
    points = curve(found)
    best = chosen(points)
    pictures = _drawn(points)
    where = f"{describe()}; model {model.name}, {model.fingerprint}"
    costs_us = {f"a look-up among {entries:,} questions": lookup_us(entries) for entries in SIZES} | redis_us()
    PAGE.write_text(page(points, best, found, costs_us, where=where, picture=bool(pictures)), encoding="utf-8")
    sys.stdout.write(f"{verdict(best)}\n" + "".join(f"{path}\n" for path in [PAGE, *pictures]))


def _drawn(points: Sequence[Point]) -> list[Path]:
    """None without matplotlib."""
    try:
        from loadtests.bench.semantic.picture import draw
    except ModuleNotFoundError:
        return []
    return list(draw(points, PAGE))


if __name__ == "__main__":
    main()
