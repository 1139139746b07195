"""Charts over training steps as inline SVG: lines, and stacked bars. Colours come from the page's style sheet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

#: Series that the style sheet has colours for (classes s0 to s7).
MAX_SERIES = 8
# A chart wider than this many points shows means of neighbouring steps: more cannot be told apart.
_MAX_POINTS = 240

# Values smaller than this are drawn as zero.
_TINY = 1e-100

_WIDTH, _HEIGHT = 420, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 10, 38


@dataclass(frozen=True)
class Series:
    """One quantity over training steps."""

    label: str
    values: Mapping[int, float]


@dataclass(frozen=True)
class _Point:
    """Mean of the values of neighbouring steps; None where no step of a series has one."""

    first: int
    last: int
    values: tuple[float | None, ...]

    @property
    def x(self) -> float:
        return (self.first + self.last) / 2

    @property
    def name(self) -> str:
        return f"step {self.first}" if self.first == self.last else f"mean of steps {self.first} to {self.last}"


def number(value: float) -> str:
    """A number for people: four significant digits, thousands and millions short."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart), about `count` of them, within [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    # Multiples of the step, counted in whole numbers, so that 0.1 + 0.2 does not become a tick's label.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def line_chart(title: str, series: Sequence[Series], *, bounds: tuple[float, float] | None = None) -> str:
    """An HTML figure with a line for each series; `bounds` fixes the vertical axis.

    A step that a series lacks is bridged; hovering over a step names its values.
    """
    points = _points(series)
    present = [value for point in points for value in point.values if value is not None]
    low, high = bounds if bounds is not None else _padded(min(present), max(present))
    x, y = _x_scale(points), _scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    marks = []
    for index in range(len(series)):
        places = [(x(point.x), y(value)) for point in points if (value := point.values[index]) is not None]
        if len(places) > 1:
            path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
            marks.append(f'<polyline class="line s{index}" points="{path}"/>')
        if len(places) <= 40:
            marks += [f'<circle class="dot s{index}" cx="{left:.1f}" cy="{top:.1f}" r="2.6"/>' for left, top in places]
    return _figure(title, series, points, x, (y, ticks(low, high, 4)), marks)


def stacked_chart(title: str, series: Sequence[Series]) -> str:
    """An HTML figure with one bar a step, in which the series lie upon each other, the first at the bottom.

    The values are sizes: what is below zero has no part in a bar.
    """
    points = _points(series)
    high = max(sum(max(value or 0.0, 0.0) for value in point.values) for point in points) * 1.05
    high = high if high >= _TINY else 1.0
    x, y = _x_scale(points), _scale(0.0, high, _HEIGHT - _BOTTOM, _TOP)
    width = max(0.8 * (_WIDTH - _LEFT - _RIGHT) / (len(points) + 1), 1.0)
    marks = []
    for point in points:
        base = 0.0
        for index, value in enumerate(point.values):
            if value is not None and value > 0.0:
                top, bottom = y(base + value), y(base)
                marks.append(
                    f'<rect class="bar s{index}" x="{x(point.x) - width / 2:.1f}" y="{top:.2f}" '
                    f'width="{width:.1f}" height="{bottom - top:.2f}"/>'
                )
                base += value
    return _figure(title, series, points, x, (y, ticks(0.0, high, 4)), marks, total=True)


def _points(series: Sequence[Series]) -> list[_Point]:
    """The steps of all series, neighbours taken together where there are too many."""
    steps = sorted({step for one in series for step in one.values})
    size = math.ceil(len(steps) / _MAX_POINTS)
    points = []
    for start in range(0, len(steps), size):
        chunk = steps[start : start + size]
        values = []
        for one in series:
            present = [one.values[step] for step in chunk if step in one.values]
            values.append(math.fsum(present) / len(present) if present else None)
        points.append(_Point(chunk[0], chunk[-1], tuple(values)))
    return points


def _padded(low: float, high: float) -> tuple[float, float]:
    """Bounds of an axis a little beyond the values; what is constant to the digits of a label gets room around it."""
    size = max(abs(low), abs(high))
    margin = 0.06 * (high - low)
    if margin <= 1e-5 * size or size < _TINY:
        margin = 0.1 * size if size >= _TINY else 1.0
    return low - margin, high + margin


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _x_scale(points: Sequence[_Point]) -> Callable[[float], float]:
    """Steps to pixels, with half a step of room at both ends."""
    room = (points[-1].x - points[0].x) / (2 * max(len(points) - 1, 1)) or 0.5
    return _scale(points[0].x - room, points[-1].x + room, _LEFT, _WIDTH - _RIGHT)


def _axes(
    points: Sequence[_Point], x: Callable[[float], float], y: Callable[[float], float], marks: list[float]
) -> str:
    parts = []
    for value in marks:
        top = y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{number(value)}</text>')
    first, last = points[0].first, points[-1].last
    steps = [step for step in ticks(first, last, 6) if step.is_integer()] if last > first else [float(first)]
    for step in steps:
        parts.append(f'<text x="{x(step):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{number(step)}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 5}" text-anchor="middle">step</text>')
    return "".join(parts)


def _hover(series: Sequence[Series], points: Sequence[_Point], x: Callable[[float], float], *, total: bool) -> str:
    """An invisible strip over each point with its values as the title, which a browser shows when it is hovered."""
    edges = [(x(left.x) + x(right.x)) / 2 for left, right in itertools.pairwise(points)]
    edges = [float(_LEFT), *edges, float(_WIDTH - _RIGHT)]
    parts = []
    for point, left, right in zip(points, edges[:-1], edges[1:], strict=True):
        lines = [point.name]
        for one, value in zip(series, point.values, strict=True):
            if value is not None:
                lines.append(f"{one.label}: {number(value)}")
        if total:
            lines.append(f"together: {number(sum(value or 0.0 for value in point.values))}")
        parts.append(
            f'<rect class="hover" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM}"><title>{escape(chr(10).join(lines))}</title></rect>'
        )
    return "".join(parts)


def _figure(
    title: str,
    series: Sequence[Series],
    points: Sequence[_Point],
    x: Callable[[float], float],
    vertical: tuple[Callable[[float], float], list[float]],
    marks: Sequence[str],
    *,
    total: bool = False,
) -> str:
    last = [one.values[max(one.values)] for one in series]
    legend = ""
    if len(series) > 1:
        entries = [
            f'<li><i class="swatch s{index}"></i>{escape(one.label)} <b>{number(value)}</b></li>'
            for index, (one, value) in enumerate(zip(series, last, strict=True))
        ]
        legend = f'<ul class="legend">{"".join(entries)}</ul>'
    now = f" <b>{number(last[0])}</b>" if len(series) == 1 else ""
    label = f"{title} over steps {points[0].first} to {points[-1].last}; last: " + ", ".join(
        f"{one.label} {number(value)}" for one, value in zip(series, last, strict=True)
    )
    return (
        f"<figure><figcaption>{escape(title)}{now}</figcaption>{legend}"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{_axes(points, x, *vertical)}{''.join(marks)}{_hover(series, points, x, total=total)}</svg></figure>"
    )
