"""Draw the pictures of the architecture pages that show no measurement: `python docs/pictures.py`.

The times are read off the code, so that a picture cannot say something else than what is done.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes

from loadtests.report.style import DARK, LIGHT, SMALL_PT, Theme, headline, settings, sheet
from services.retrieval import cache, search, store
from services.retrieval.config import RetrievalSettings
from services.router.config import RouterSettings
from services.router.rag.retrieval import WIRE_RESERVE_MS

FOLDER = Path(__file__).parent / "architecture" / "pictures"
LANES = ("router", "cache", "embedder", "database", "answer")
CACHE_TOOK_MS, EMBEDDING_TOOK_MS, SEARCH_TAKES_MS = 1.5, 14.0, 8.0  # of an example


@dataclass(frozen=True, slots=True)
class Budget:
    """The times of one retrieval at the usual settings, in milliseconds after the router began to wait."""

    router: float
    retrieval: float
    cache: float
    embed_by: float
    answer_by: float

    @classmethod
    def usual(cls) -> Budget:
        """As `search.py` reckons them; a search is expected to take what the last ones took."""
        router = float(RouterSettings.model_fields["retrieval_budget_ms"].default)
        redis = float(RetrievalSettings.model_fields["redis_timeout_ms"].default)
        retrieval = router - WIRE_RESERVE_MS
        answer_by = retrieval - min(retrieval * search.RESERVE_SHARE, search.MAX_RESERVE_S * 1000)
        embed_by = answer_by - min(SEARCH_TAKES_MS, retrieval * search.SEARCH_SHARE)
        return cls(router, retrieval, min(redis, retrieval * cache.SHARE_OF_BUDGET), embed_by, answer_by)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")):
        with mpl.rc_context(settings(theme)):
            path = FOLDER / f"budget{ending}"
            _timeline(Budget.usual(), theme).savefig(path, metadata={"Date": None, "Creator": None})
            sys.stdout.write(f"{path}\n")
    return 0


def _timeline(budget: Budget, theme: Theme) -> mpl.figure.Figure:
    figure, (axes,) = sheet(1, left=0.1, right=0.98, height_in=4.2)
    headline(
        figure, theme, f"Where {budget.router:g} milliseconds go",
        "Solid: a question that nobody asked before, on a healthy stack. Pale: what each may take at most.",
    )  # fmt: skip
    embedded, searched = CACHE_TOOK_MS + EMBEDDING_TOOK_MS, CACHE_TOOK_MS + EMBEDDING_TOOK_MS + SEARCH_TAKES_MS
    for lane, most, took in (
        (0, (0.0, budget.router), None),
        (1, (0.0, budget.cache), (0.0, CACHE_TOOK_MS)),
        (2, (CACHE_TOOK_MS, budget.embed_by), (CACHE_TOOK_MS, embedded)),
        (3, (embedded, budget.answer_by), (embedded, searched)),
        (4, (budget.answer_by, budget.retrieval), None),
    ):
        _bar(axes, lane, *most, color=theme.weir, alpha=0.22)
        if took is not None:
            _bar(axes, lane, *took, color=theme.weir, alpha=1.0)
    for lane, at, words in (
        (0, 1.0, f"waits for passages, {budget.router:g} ms at most, {WIRE_RESERVE_MS:g} of them for the way"),
        (1, budget.cache + 1, "a quarter, or REDIS_TIMEOUT_MS: by then a fallback is in hand"),
        (2, embedded + 1, "while there is still time for a search"),
        (3, searched + 1, "and no longer in the server"),
        (4, searched + 1, "kept back for the answer to be written"),
    ):
        axes.text(at, lane, words, va="center", fontsize=SMALL_PT, color=theme.ink)
    for at, name, side in (
        (budget.embed_by, "embed by", "right"),
        (budget.answer_by, "answer by", "right"),
        (budget.retrieval, "budget", "left"),
    ):
        axes.axvline(at, color=theme.quiet, linewidth=0.9, linestyle=(0, (4, 3)))
        height = -0.5 if name == "answer by" else -0.85
        axes.text(at, height, f" {name} ", ha=side, va="center", fontsize=SMALL_PT, color=theme.quiet)
    grace = f"(one that is still silent {store.GRACE_S * 1000:g} ms later is given up, behind the answer)"
    axes.text(searched + 1, 3.43, grace, va="center", fontsize=SMALL_PT, color=theme.quiet)
    axes.set_xlim(0, budget.router)
    axes.set_ylim(len(LANES) - 0.4, -1.1)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.grid(visible=False)
    axes.set_xlabel("milliseconds")
    return figure


def _bar(axes: Axes, lane: int, begin: float, end: float, *, color: str, alpha: float) -> None:
    axes.barh(lane, end - begin, left=begin, height=0.52, color=color, alpha=alpha, linewidth=0)


if __name__ == "__main__":
    raise SystemExit(main())
