"""Charts over training steps as inline SVG: lines, and stacked bars. Colours come from the page's style sheet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from verl_cli.report.catalogue import MAX_LINES
from verl_cli.report.scale import TINY, Extent, Point, linear, number, padded, points, tick_labels, ticks

#: A chart takes neighbouring steps together beyond this many points: more cannot be told apart.
MAX_POINTS = 240
_MAX_BARS = 120
# Up to this many points each has a dot.
_MAX_DOTS = 40

_WIDTH, _HEIGHT = 420, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 20, 10, 38
# A tick's label longer than this many characters is squeezed into its place.
_LABEL = 7


@dataclass(frozen=True)
class Series:
    """One quantity over training steps.

    Attributes:
        label: what the legend calls it.
        values: value by step, at least one.
        style: which colour and dashes it has; series of one chart that share a style look alike.
        tag: letters that stand at the end of its line.
    """

    label: str
    values: Mapping[int, float]
    style: int = 0
    tag: str = ""

    @property
    def css(self) -> str:
        """Its class in the style sheet."""
        return f"s{self.style % MAX_LINES}"


@dataclass(frozen=True)
class Caption:
    """What stands around a chart: above it title and unit, below it what to look for and what went wrong."""

    title: str
    unit: str = ""
    good: str = ""
    warning: str = ""


def line_chart(
    caption: Caption,
    series: Sequence[Series],
    *,
    bounds: tuple[float, float] | None = None,
    legend: bool = True,
    most_points: int = MAX_POINTS,
) -> str:
    """An HTML figure with a line of at most `most_points` for each series; `bounds` fixes the vertical axis.

    A step that a series lacks is bridged. Where there are more steps than can be drawn, the line is the mean of
    neighbours, and a band behind it reaches from their lowest to their highest value. Hovering names the values.
    """
    drawn = points([one.values for one in series], most_points)
    present = [extent for point in drawn for extent in point.extents if extent is not None]
    low, high = bounds or padded(min(extent.low for extent in present), max(extent.high for extent in present))
    x, y = _x_scale(drawn, bars=False), linear(low, high, _HEIGHT - _BOTTOM, _TOP)
    one_step_each = all(point.first == point.last for point in drawn)
    bands, lines, ends = [], [], []
    for index, one in enumerate(series):
        places = [(x(point.x), extent) for point in drawn if (extent := point.extents[index]) is not None]
        path = " ".join(f"{left:.1f},{y(extent.mean):.1f}" for left, extent in places)
        if any(extent.low < extent.high for _, extent in places):
            bands.append(f'<polygon class="band {one.css}" points="{_outline(places, y)}"/>')
        if len(places) > 1:
            lines.append(f'<polyline class="line {one.css}" points="{path}"/>')
        if len(places) == 1 or (len(places) <= _MAX_DOTS and one_step_each):
            lines += [
                f'<circle class="dot {one.css}" cx="{left:.1f}" cy="{y(extent.mean):.1f}" r="2.4"/>'
                for left, extent in places
            ]
        ends.append((places[-1][0], y(places[-1][1].mean), one))
    marks = [*bands, *lines, *_tags(ends)]
    shown = _legend([(one, _last(one)) for one in series], "line") if legend and len(series) > 1 else ""
    return _figure(caption, series, drawn, marks, axis=_axes(drawn, x, y, ticks(low, high, 4)), legend=shown, x=x)


def stacked_chart(caption: Caption, series: Sequence[Series]) -> str:
    """An HTML figure with one bar a step, in which the series lie upon each other, the first at the bottom.

    The values are sizes: what is below zero has no part in a bar. Where there are more steps than can be drawn, a bar
    is the mean of neighbours, and a thin line goes up to the highest of them. The legend has the mean over all steps.
    """
    drawn = points([one.values for one in series], _MAX_BARS)
    high = max(point.highest_total for point in drawn) * 1.05
    high = high if high >= TINY else 1.0
    x, y = _x_scale(drawn, bars=True), linear(0.0, high, _HEIGHT - _BOTTOM, _TOP)
    width = max(0.8 * (_WIDTH - _LEFT - _RIGHT) / (len(drawn) + 1), 1.0)
    marks = []
    for point in drawn:
        base = 0.0
        if point.first < point.last:
            marks.append(
                f'<line class="peak" x1="{x(point.x):.1f}" x2="{x(point.x):.1f}" y1="{y(0.0):.1f}" '
                f'y2="{y(point.highest_total):.1f}"/>'
            )
        for one, extent in zip(series, point.extents, strict=True):
            if extent is not None and extent.mean > 0.0:
                top, bottom = y(base + extent.mean), y(base)
                marks.append(
                    f'<rect class="bar {one.css}" x="{x(point.x) - width / 2:.1f}" y="{top:.2f}" '
                    f'width="{width:.1f}" height="{bottom - top:.2f}"/>'
                )
                base += extent.mean
    steps = len({step for one in series for step in one.values})
    legend = _legend([(one, sum(one.values.values()) / steps) for one in series], "bar")
    axis = _axes(drawn, x, y, ticks(0.0, high, 4))
    return _figure(caption, series, drawn, marks, axis=axis, legend=legend, x=x, total=True)


def key(one: Series, kind: str = "line") -> str:
    """The small picture that stands for a series in a legend: a piece of its line, or a box of its bars."""
    shape = (
        f'<line class="line {one.css}" x1="0" x2="26" y1="5" y2="5"/>'
        if kind == "line"
        else f'<rect class="bar {one.css}" width="10" height="10"/>'
    )
    width = 26 if kind == "line" else 10
    return f'<svg class="key" width="{width}" height="10" viewBox="0 0 {width} 10" aria-hidden="true">{shape}</svg>'


def _legend(values: Sequence[tuple[Series, float]], kind: str) -> str:
    entries = [f"<li>{key(one, kind)}{escape(one.label)} <b>{number(value)}</b></li>" for one, value in values]
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _last(one: Series) -> float:
    return one.values[max(one.values)]


def _outline(places: Sequence[tuple[float, Extent]], y: Callable[[float], float]) -> str:
    """Points of the area between the lowest and the highest values."""
    upper = [f"{left:.1f},{y(extent.high):.1f}" for left, extent in places]
    lower = [f"{left:.1f},{y(extent.low):.1f}" for left, extent in reversed(places)]
    return " ".join([*upper, *lower])


def _tags(ends: Sequence[tuple[float, float, Series]]) -> list[str]:
    """The tag of each series behind its last point; tags in one place are moved apart."""
    columns: list[list[tuple[float, float, Series]]] = []
    for end in sorted((end for end in ends if end[2].tag), key=lambda end: end[0]):
        if columns and end[0] - columns[-1][0][0] < 14:
            columns[-1].append(end)
        else:
            columns.append([end])
    texts = []
    for column in columns:
        column.sort(key=lambda end: end[1])
        lowest = float(_HEIGHT - _BOTTOM)
        tops: list[float] = []
        for _, top, _ in column:
            tops.append(max(top, tops[-1] + 12) if tops else max(top, _TOP + 2))
        # Those that were pushed below the plot go up again, and push what is above them.
        for index in reversed(range(len(tops))):
            tops[index] = min(tops[index], lowest)
            lowest = tops[index] - 12
        left = max(end[0] for end in column) + 4
        texts += [
            f'<text class="tag {one.css}" x="{left:.1f}" y="{top + 4:.1f}">{escape(one.tag)}</text>'
            for top, (_, _, one) in zip(tops, column, strict=True)
        ]
    return texts


def _x_scale(drawn: Sequence[Point], *, bars: bool) -> Callable[[float], float]:
    """Steps to pixels, with room at both ends: for half a bar, or at most a fiftieth of the axis."""
    length = drawn[-1].x - drawn[0].x
    room = length / (2 * max(len(drawn) - 1, 1)) or 0.5
    if not bars and length:
        room = min(room, length / 50)
    return linear(drawn[0].x - room, drawn[-1].x + room, _LEFT, _WIDTH - _RIGHT)


def _axes(
    drawn: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float], values: Sequence[float]
) -> str:
    parts = []
    for value, label in zip(values, tick_labels(values), strict=True):
        top = y(value)
        squeeze = f' textLength="{_LEFT - 10}" lengthAdjust="spacingAndGlyphs"' if len(label) > _LABEL else ""
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{top + 4:.1f}" text-anchor="end"{squeeze}>{escape(label)}</text>')
    first, last = drawn[0].first, drawn[-1].last
    steps = [step for step in ticks(first, last, 5) if step.is_integer()] if last > first else [float(first)]
    for step, label in zip(steps, tick_labels(steps), strict=True):
        # The first and the last label keep to the chart, however long.
        half = 3.7 * len(label)
        left = min(max(x(step), half), _WIDTH - half)
        parts.append(f'<text x="{left:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 5}" text-anchor="middle">step</text>')
    return "".join(parts)


def _hover(series: Sequence[Series], drawn: Sequence[Point], x: Callable[[float], float], *, total: bool) -> str:
    """An invisible strip over each point with its values as the title, which a browser shows when it is hovered."""
    edges = [(x(left.x) + x(right.x)) / 2 for left, right in itertools.pairwise(drawn)]
    edges = [float(_LEFT), *edges, float(_WIDTH - _RIGHT)]
    parts = []
    for point, left, right in zip(drawn, edges[:-1], edges[1:], strict=True):
        lines = [point.name]
        for one, extent in zip(series, point.extents, strict=True):
            if extent is not None:
                lines.append(f"{one.label}: {_values(extent)}")
        if total:
            lines.append(f"together: {number(sum(extent.mean for extent in point.extents if extent is not None))}")
        parts.append(
            f'<rect class="hover" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM}"><title>{escape(chr(10).join(lines))}</title></rect>'
        )
    return "".join(parts)


def _values(extent: Extent) -> str:
    if extent.low == extent.high:
        return number(extent.mean)
    return f"mean {number(extent.mean)}, {number(extent.low)} to {number(extent.high)}"


def _figure(
    caption: Caption,
    series: Sequence[Series],
    drawn: Sequence[Point],
    marks: Sequence[str],
    *,
    axis: str,
    legend: str,
    x: Callable[[float], float],
    total: bool = False,
) -> str:
    now = f" <b>{number(_last(series[0]))}</b>" if len(series) == 1 else ""
    unit = f"<small>{escape(caption.unit)}</small>" if caption.unit else ""
    label = f"{caption.title} over steps {drawn[0].first} to {drawn[-1].last}; last: " + ", ".join(
        f"{one.label} {number(_last(one))}" for one in series
    )
    warning = f'<p class="warning">{escape(caption.warning)}</p>' if caption.warning else ""
    together = max(point.count for point in drawn)
    thinned = ""
    if together > 1:
        drawn_as = (
            "Bars: mean of {} steps; thin lines: the highest." if total else "Mean of {} steps; band: all of them."
        )
        thinned = f' <span class="thinned">{drawn_as.format(together)}</span>'
    return (
        f"<figure><figcaption><span>{escape(caption.title)}{unit}</span>{now}</figcaption><div>{legend}</div>"
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escape(label)}</title>'
        f"{axis}{''.join(marks)}{_hover(series, drawn, x, total=total)}</svg>"
        f'<div>{warning}<p class="good">{escape(caption.good)}{thinned}</p></div></figure>'
    )
