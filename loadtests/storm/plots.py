"""Plots as text: an inline SVG that needs no script, no font and no other file, and takes its colours from the page.

Lines differ by colour and by dash, so that no line is known by its colour alone, on paper either. A value that is not
there (None) leaves a gap rather than a zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 34
BAR_HEIGHT, BAR_GAP, NAMES_WIDTH = 18, 8, 110

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One series, a value a second. `style` names the page's class: its colour and dash."""

    name: str
    values: Values
    style: str


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line that means something."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Moment:
    """A vertical line: something changes."""

    name: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time. `highest`: of the vertical axis, so that two runs can be read side by side; 0: what fits."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    levels: tuple[Level, ...] = ()
    moments: tuple[Moment, ...] = ()
    highest: float = 0.0

    @property
    def top(self) -> float:
        """The highest value in it."""
        values = [value for line in self.lines for value in line.values if value is not None]
        return max([*values, *(level.value for level in self.levels), 0.0])


@dataclass(frozen=True, slots=True)
class Bar:
    """One of a row of bars: a share of 1, and what stands beside it."""

    name: str
    share: float | None
    words: str


def draw(chart: Chart) -> str:
    """The chart as an SVG element."""
    seconds = max([len(line.values) for line in chart.lines] or [1]) or 1
    highest = nice_top(chart.highest or chart.top)
    frame = _Frame(float(seconds), highest)
    parts = [
        *_grid(frame, chart.unit),
        *(_level(frame, level) for level in chart.levels if level.value <= highest),
        *(_moment(frame, moment) for moment in chart.moments if moment.at_s <= seconds),
        *(_line(frame, line) for line in chart.lines),
        *_legend(chart.lines),
    ]
    return _svg(chart.title, WIDTH, HEIGHT, parts)


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """Shares, one below the other."""
    height = 8 + len(bars) * (BAR_HEIGHT + BAR_GAP)
    whole = WIDTH - NAMES_WIDTH - 150
    parts = []
    for index, bar in enumerate(bars):
        y = 4 + index * (BAR_HEIGHT + BAR_GAP)
        middle = y + BAR_HEIGHT / 2 + 4
        share = min(max(bar.share or 0.0, 0.0), 1.0)
        parts += [
            f'<text x="{NAMES_WIDTH - 8}" y="{middle:g}" class="end">{escape(bar.name)}</text>',
            f'<rect x="{NAMES_WIDTH}" y="{y}" width="{whole}" height="{BAR_HEIGHT}" class="trough"/>',
            f'<rect x="{NAMES_WIDTH}" y="{y}" width="{whole * share:.1f}" height="{BAR_HEIGHT}" class="bar"/>',
            f'<text x="{NAMES_WIDTH + whole + 8}" y="{middle:g}">{escape(bar.words)}</text>',
        ]
    return _svg(title, WIDTH, height, parts)


def nice_top(value: float) -> float:
    """The next of 1, 2, 2.5, 5, 10, ... that a value fits under."""
    if not 0 < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if value <= step * power * (1 + 1e-9))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where a second and a value stand."""

    seconds: float
    highest: float

    def x(self, second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * second / self.seconds

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value, self.highest) / self.highest


def _grid(frame: _Frame, unit: str) -> Iterator[str]:
    intervals = 4 if f"{frame.highest:e}".startswith(("1.0", "2.0")) else 5  # so that every tick is a round number
    for index in range(intervals + 1):
        value = frame.highest * index / intervals
        y = frame.y(value)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">{value:g}</text>'
    every = next(step for step in (1, 2, 5, 10, 20, 30, 60, 120) if frame.seconds / step <= 8)
    for second in range(0, int(frame.seconds) + 1, every):
        yield f'<text x="{frame.x(second):.1f}" y="{HEIGHT - 14}" class="middle">{second}</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" class="end quiet">seconds</text>'
    yield f'<text x="{WIDTH - RIGHT}" y="16" class="end quiet">{escape(unit)}</text>'


def _level(frame: _Frame, level: Level) -> str:
    y = frame.y(level.value)
    return (
        f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="level"/>'
        f'<text x="{LEFT + 4}" y="{y - 4:.1f}" class="quiet">{escape(level.name)}</text>'
    )


def _moment(frame: _Frame, moment: Moment) -> str:
    x = frame.x(moment.at_s)
    left = x > WIDTH * 0.65  # or its words would leave the picture
    at, side = (x - 3, "end ") if left else (x + 3, "")
    return (
        f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" class="moment"/>'
        f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM - 5}" class="{side}quiet small">{escape(moment.name)}</text>'
    )


def _line(frame: _Frame, line: Line) -> str:
    path, drawing = [], False
    for second, value in enumerate(line.values):
        if value is None:
            drawing = False
            continue
        path.append(f"{'L' if drawing else 'M'}{frame.x(second + 0.5):.1f} {frame.y(value):.1f}")
        drawing = True
    dots = "".join(
        f'<circle cx="{frame.x(at + 0.5):.1f}" cy="{frame.y(value):.1f}" r="1.6" class="dot {line.style}"/>'
        for at, value in enumerate(line.values)
        if value is not None and _alone(line.values, at)
    )
    return f'<path d="{" ".join(path)}" class="line {line.style}"/>{dots}' if path else ""


def _alone(values: Values, at: int) -> bool:
    """Without neighbours a point draws no line, and would not be seen."""
    before = values[at - 1] if at else None
    after = values[at + 1] if at + 1 < len(values) else None
    return before is None and after is None


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    x = LEFT
    for line in lines:
        yield f'<path d="M{x} 12 h22" class="line {line.style}"/>'
        yield f'<text x="{x + 27}" y="16">{escape(line.name)}</text>'
        x += 27 + 7 * len(line.name) + 18


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    return head + "".join(parts) + "</svg>"
