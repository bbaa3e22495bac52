"""Plots as inline SVG without scripts, fonts or other files; the page supplies the colors.

`loadtests.report` uses matplotlib, which would make the bench's image ten times as large. Lines differ by color and
dash, for print and color blindness. A missing value (None) is a gap, not a zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from services.contracts.storm import Mark

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 34
BAR_HEIGHT, BAR_GAP, NAMES_WIDTH = 18, 8, 110
TICKS_S = (1, 2, 5, 10, 20, 30, 60)

Values = Sequence[float | None]


class Line(NamedTuple):
    """One series with a value per second. `style` is the page's class for color and dash."""

    name: str
    values: Values
    style: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time. `level` is a labelled horizontal line; `marks` are labelled moments."""

    title: str
    unit: str
    lines: Sequence[Line]
    level: tuple[str, float] | None = None
    marks: Sequence[Mark] = ()

    @property
    def has_values(self) -> bool:
        return any(value is not None for line in self.lines for value in line.values)

    @property
    def top(self) -> float:
        values = [value for line in self.lines for value in line.values if value is not None]
        return max([*values, self.level[1] if self.level else 0.0, 0.0])


def draw(chart: Chart, highest: float = 0.0) -> str:
    """The chart as an SVG element. `highest` fixes the vertical axis for comparison; 0 fits it to the data."""
    frame = _Frame(max(1, *(len(line.values) for line in chart.lines)), nice_top(highest or chart.top))
    parts = [*_grid(frame, chart.unit)]
    if chart.level is not None and chart.level[1] <= frame.highest:
        name, value = chart.level
        parts.append(_rule("level", y=frame.y(value)) + _text(LEFT + 4, frame.y(value) - 4, name, "quiet"))
    parts += [_mark(frame, mark) for mark in chart.marks if mark.s <= frame.seconds]
    x = LEFT
    for line in chart.lines:
        parts.append(f'<path d="{_path(frame, line.values)}" class="line {line.style}"/>')
        parts.append(f'<path d="M{x} 12 h22" class="line {line.style}"/>{_text(x + 27, 16, line.name)}')
        x += 27 + 7 * len(line.name) + 18
    return _svg(chart.title, HEIGHT, parts)


def draw_bars(title: str, bars: Sequence[tuple[str, float | None, str]]) -> str:
    """Horizontal bars of shares of 1, each with a name and a text."""
    whole, parts = WIDTH - NAMES_WIDTH - 150, []
    for index, (name, share, words) in enumerate(bars):
        y = 4 + index * (BAR_HEIGHT + BAR_GAP)
        middle = y + BAR_HEIGHT / 2 + 4
        parts.append(_text(NAMES_WIDTH - 8, middle, name, "end"))
        for width, style in ((whole, "trough"), (whole * min(max(share or 0.0, 0.0), 1.0), "bar")):
            parts.append(f'<rect x="{NAMES_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" class="{style}"/>')
        parts.append(_text(NAMES_WIDTH + whole + 8, middle, words))
    return _svg(title, 8 + len(bars) * (BAR_HEIGHT + BAR_GAP), parts)


def nice_top(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10, ... that is not below the value."""
    if not 0 < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if value <= step * power * (1 + 1e-9))


class _Frame(NamedTuple):
    seconds: int
    highest: float

    def x(self, second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * second / self.seconds

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value, self.highest) / self.highest


def _grid(frame: _Frame, unit: str) -> Iterator[str]:
    intervals = 4 if f"{frame.highest:e}".startswith(("1.0", "2.0")) else 5  # keeps every tick a round number
    for index in range(intervals + 1):
        value = frame.highest * index / intervals
        yield _rule("grid", y=frame.y(value)) + _text(LEFT - 6, frame.y(value) + 4, f"{value:g}", "end")
    every = next((step for step in TICKS_S if frame.seconds / step <= 8), TICKS_S[-1])
    for second in range(0, frame.seconds + 1, every):
        yield _text(frame.x(second), HEIGHT - 14, str(second), "middle")
    yield _text(WIDTH - RIGHT, HEIGHT - 2, "seconds", "end quiet") + _text(WIDTH - RIGHT, 16, unit, "end quiet")


def _mark(frame: _Frame, mark: Mark) -> str:
    x = frame.x(mark.s)
    left = x > WIDTH * 0.65  # otherwise the text would leave the picture
    words = _text(x - 3 if left else x + 3, HEIGHT - BOTTOM - 5, mark.what, f"{'end ' if left else ''}quiet small")
    return _rule("moment", x=x) + words


def _path(frame: _Frame, values: Values) -> str:
    """Each stretch begins with a short dash, so that a single value is visible."""
    path, drawing = [], False
    for second, value in enumerate(values):
        if value is not None:
            at = f"{frame.x(second + 0.5):.1f} {frame.y(value):.1f}"
            path.append(f"L{at}" if drawing else f"M{at}m-1 0h2")
        drawing = value is not None
    return " ".join(path)


def _rule(style: str, *, x: float | None = None, y: float | None = None) -> str:
    if x is None:
        return f'<path d="M{LEFT} {y:.1f} H{WIDTH - RIGHT}" class="{style}"/>'
    return f'<path d="M{x:.1f} {TOP} V{HEIGHT - BOTTOM}" class="{style}"/>'


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(words)}</text>'


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    return head + "".join(parts) + "</svg>"
