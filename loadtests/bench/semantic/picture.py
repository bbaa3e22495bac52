"""The curve as a picture: what a threshold finds, and what it gets wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib as mpl

from loadtests.bench.semantic.measure import MOST_WRONG, Point
from loadtests.report.style import DARK, LIGHT, SMALL_PT, headline, settings, sheet

QUESTION = "Is the nearest question the same question?"


def draw(points: Sequence[Point], page: Path) -> Iterator[Path]:
    """Beside `semantic.md`: `semantic.svg` and, for dark pages, `semantic-dark.svg`."""
    at = [point.threshold for point in points]
    for theme, ending in ((LIGHT, ".svg"), (DARK, "-dark.svg")):
        with mpl.rc_context(settings(theme)):
            figure, (axes,) = sheet(1, left=0.07, right=0.78)
            note = f"{points[0].paraphrases} paraphrases and {points[0].near_misses} near misses, all-MiniLM-L6-v2."
            headline(figure, theme, QUESTION, note)
            for name, values, color, above in (
                ("answered wrongly,\nof all look-ups", [100 * point.wrong_rate for point in points], theme.wasted, 6),
                ("paraphrases found", [100 * point.hit_rate for point in points], theme.weir, 2),
            ):
                axes.plot(at, values, color=color, linewidth=2.4)
                axes.text(at[-1] + 0.004, values[-1] + above, name, color=color, va="bottom")
            axes.axhline(100 * MOST_WRONG, color=theme.quiet, linewidth=1, linestyle=(0, (4, 3)))
            axes.text(at[0], 100 * MOST_WRONG + 0.6, "allowed: 1 %", color=theme.quiet, fontsize=SMALL_PT)
            axes.set_xlim(at[0], at[-1])
            axes.set_ylim(0, None)
            axes.set_xlabel("threshold of the cosine")
            axes.set_ylabel("% of questions")
            path = page.with_name(page.stem + ending)
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            yield path
