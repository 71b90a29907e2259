"""Charts as inline SVG, from plain numbers. The page's style sheet has the colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from dips.report.markup import NOTHING, Markup

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 14, 46
COLOURS = 12
"""Number of colours; further series reuse them with dashed lines."""
DASHED = ' stroke-dasharray="6 4"'
"""Attribute of a horizontal line."""
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Point:
    """A point with an optional interval and a tooltip (`note`)."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one name; the colour index also selects the marker."""

    name: str
    colour: int
    """Index of a colour of the page (`--c0`, `--c1`, ...)."""
    points: tuple[Point, ...]
    horizontal: bool = False
    """Whether it is drawn as a horizontal line at the height of its one point."""


@dataclass(frozen=True)
class BarSegment:
    """One segment of a stacked bar; sizes sum to 1."""

    name: str
    fill: str
    """CSS colour."""
    size: float


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    x_ticks: Sequence[float] = (),
) -> Markup:
    """Return an SVG of lines with markers and interval whiskers.

    Args:
        series: The lines; those without points are left out.
        title: Accessible name of the chart.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        log_x: Whether the x axis is logarithmic.
        x_ticks: Ticks of the x axis; by default round numbers.

    Returns:
        The SVG, empty without points.
    """
    series = [one for one in series if one.points]
    points = [point for one in series for point in one.points]
    if not points:
        return NOTHING
    heights = [v for p in points for v in (p.y, p.low, p.high) if v is not None]
    y_ticks = nice_ticks(min(heights), max(heights))
    xs = [p.x for one in series if not one.horizontal for p in one.points]
    xs = xs or [p.x for p in points]
    marks = list(x_ticks) or nice_ticks(min(xs), max(xs))
    x = _scale(min(*xs, *marks), max(*xs, *marks), LEFT + 14, WIDTH - RIGHT - 14, log_x)
    y = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [_y_axis(y, y_ticks, y_label), _x_axis(x, marks, x_label)]
    for index, one in enumerate(series):
        parts.append(_draw_series(one, x, y, 3.0 * (index - (len(series) - 1) / 2)))
    description = f"{y_label} by {x_label}: " + "; ".join(map(_describe_series, series))
    return _svg(title, description, HEIGHT, parts)


def interval_chart(rows: Sequence[tuple[str, int, Point]], *, title: str, x_label: str) -> Markup:
    """Return an SVG with one row per name: a difference and its interval, around zero.

    Args:
        rows: Name, colour index and point; the difference is the x of the point.
        title: Accessible name of the chart.
        x_label: Label of the x axis.

    Returns:
        The SVG, empty without rows.
    """
    if not rows:
        return NOTHING
    step, top = 26, 12
    bottom = top + step * len(rows)
    ends = [v for _, _, p in rows for v in (p.x, p.low, p.high, 0.0) if v is not None]
    ticks = nice_ticks(min(ends), max(ends), 4)
    x = _scale(ticks[0], ticks[-1], 150, WIDTH - RIGHT - 10)
    parts = [_x_axis(x, ticks, x_label, bottom)]
    parts.append(f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{top}" y2="{bottom}"/>')
    for place, (name, colour, point) in enumerate(rows):
        at = top + step * (place + 0.5)
        css_colour = f"var(--c{colour % COLOURS})"
        low = point.x if point.low is None else point.low
        high = point.x if point.high is None else point.high
        parts.append(
            f'<g><title>{escape(point.note)}</title><text class="name" x="138" y="{at + 4:.1f}" '
            f'text-anchor="end">{escape(name)}</text>'
            f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{at}" y2="{at}" '
            f'stroke="{css_colour}" stroke-width="2"/>{marker(colour, x(point.x), at)}</g>'
        )
    description = "; ".join(point.note for _, _, point in rows)
    return _svg(title, description, bottom + BOTTOM, parts)


def bar_chart(bars: Sequence[tuple[str, Sequence[BarSegment]]], *, title: str) -> Markup:
    """Return an SVG with one stacked bar of 100 % per name."""
    step, top, left = 40, 6, 150
    wide = WIDTH - RIGHT - left
    parts = []
    for place, (name, shares) in enumerate(bars):
        at, above = left * 1.0, top + step * place
        parts.append(
            f'<text class="name" x="{left - 12}" y="{above + 19}" text-anchor="end">'
            f"{escape(name)}</text>"
        )
        for share in shares:
            width = share.size * wide
            parts.append(
                f"<g><title>{escape(f'{name}: {share.name} {share.size:.1%}')}</title>"
                f'<rect x="{at:.1f}" y="{above}" width="{width:.1f}" height="28" '
                f'fill="{share.fill}"/>'
            )
            if share.size >= 0.12:
                parts.append(
                    f'<text x="{at + width / 2:.1f}" y="{above + 19}" text-anchor="middle" '
                    f'style="fill: var(--card)">{100 * share.size:.0f} %</text>'
                )
            parts.append("</g>")
            at += width
    description = "; ".join(
        f"{name}: " + ", ".join(f"{share.name} {share.size:.1%}" for share in shares)
        for name, shares in bars
    )
    return _svg(title, description, top + step * len(bars), parts)


def legend(series: Sequence[Series]) -> Markup:
    """Return a list of the series' names with their lines and markers."""
    rows = "".join(
        f'<li><svg viewBox="0 0 26 12" aria-hidden="true"><line x1="1" x2="25" y1="6" y2="6" '
        f'stroke="var(--c{one.colour % COLOURS})" stroke-width="2"'
        f"{DASHED if one.horizontal else _dash(one.colour)}/>"
        f"{'' if one.horizontal else marker(one.colour, 13, 6)}</svg>{escape(one.name)}</li>"
        for one in series
    )
    return Markup(f'<ul class="legend">{rows}</ul>')


def marker(colour: int, x: float, y: float) -> str:
    """Return a marker: some readers cannot distinguish lines by colour."""
    shapes = (
        "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
        "M-3.6 -3.6h7.2v7.2h-7.2Z",
        "M0 -4.8L4.6 3.6H-4.6Z",
        "M0 -5L5 0L0 5L-5 0Z",
        "M0 4.8L4.6 -3.6H-4.6Z",
        "M-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3Z",
        "M-4.5 -2h9v4h-9Z",
        "M-2 -4.5h4v9h-4Z",
    )
    css_colour = f"var(--c{colour % COLOURS})"
    shape = shapes[colour % len(shapes)]
    return f'<path d="{shape}" transform="translate({x:.1f} {y:.1f})" fill="{css_colour}"/>'


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers that enclose both ends.

    >>> nice_ticks(0.13, 0.29)
    [0.1, 0.15, 0.2, 0.25, 0.3]
    """
    if high <= low:
        low, high = low - (abs(low) * 0.05 or 1.0), high + (abs(high) * 0.05 or 1.0)
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _scale(low: float, high: float, start: float, end: float, log: bool = False) -> Scale:
    """Return a linear or logarithmic map from values to pixels."""
    transform: Scale = math.log if log else float
    first, span = transform(low), transform(high) - transform(low)
    if span == 0:
        return lambda value: (start + end) / 2
    return lambda value: start + (transform(value) - first) / span * (end - start)


def _y_axis(y: Scale, ticks: Sequence[float], label: str) -> str:
    lines = "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(t) + 4:.1f}" text-anchor="end">{t:.6g}</text>'
        for t in ticks
    )
    middle = (HEIGHT - BOTTOM + TOP) / 2
    return (
        f'{lines}<text transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(label)}</text>"
    )


def _x_axis(x: Scale, ticks: Sequence[float], label: str, at: float = HEIGHT - BOTTOM) -> str:
    marks = "".join(
        f'<line class="axis" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{at}" y2="{at + 4}"/>'
        f'<text x="{x(t):.1f}" y="{at + 18}" text-anchor="middle">{t:.6g}</text>'
        for t in ticks
    )
    middle = (x(ticks[0]) + x(ticks[-1])) / 2
    return (
        f'{marks}<text x="{middle:.1f}" y="{at + 38}" text-anchor="middle">{escape(label)}</text>'
    )


def _draw_series(series: Series, x: Scale, y: Scale, x_offset: float) -> str:
    """Return one line; `x_offset` shifts its whiskers in x so that lines do not overlap."""
    colour = series.colour
    css_colour = f"var(--c{colour % COLOURS})"
    if series.horizontal:
        height = y(series.points[0].y)
        return (
            f'<g><title>{escape(series.points[0].note)}</title><line x1="{LEFT}" '
            f'x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="{css_colour}" '
            f'stroke-width="2"{DASHED}/></g>'
        )
    path = " ".join(f"{x(p.x) + x_offset:.1f},{y(p.y):.1f}" for p in series.points)
    parts = [f'<polyline class="line" points="{path}" stroke="{css_colour}"{_dash(colour)}/>']
    for point in series.points:
        at = x(point.x) + x_offset
        whisker = ""
        if point.low is not None and point.high is not None:
            whisker = (
                f'<line class="whisker" x1="{at:.1f}" x2="{at:.1f}" y1="{y(point.low):.1f}" '
                f'y2="{y(point.high):.1f}" stroke="{css_colour}"/>'
            )
        shape = marker(colour, at, y(point.y))
        parts.append(f"<g><title>{escape(point.note)}</title>{whisker}{shape}</g>")
    return "".join(parts)


def _dash(colour: int) -> str:
    return "" if colour < COLOURS else ' stroke-dasharray="5 3"'


def _describe_series(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    if series.horizontal or first == last:
        return f"{series.name} {first.y:.4g}"
    return f"{series.name} from {first.y:.4g} at {first.x:.4g} to {last.y:.4g} at {last.x:.4g}"


def _svg(title: str, description: str, height: float, parts: Sequence[str]) -> Markup:
    label = escape(title, quote=True)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{label}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )
