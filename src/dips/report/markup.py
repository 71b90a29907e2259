"""HTML elements of a page: tables, figures, sections. Text is escaped here, once."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Markup(str):
    """Safe HTML: its text is escaped already, so it is not escaped again."""

    __slots__ = ()


Cell = str | Markup
"""Content of a table cell: plain text or markup."""


def to_html(cell: Cell) -> Markup:
    """Return a cell as HTML; plain text is escaped."""
    return cell if isinstance(cell, Markup) else Markup(escape(cell))


def concatenate(*parts: Markup) -> Markup:
    """Return pieces of HTML one after another."""
    return Markup("".join(parts))


NOTHING = Markup()


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str) -> Markup:
    """Return a table; the first cell of each row is its header. A wide table scrolls."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{to_html(row[0])}</th>'
        + "".join(f"<td>{to_html(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    return Markup(
        f'<div class="box"><p class="caption">{escape(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table aria-label="{label}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></div>"
    )


def figure(
    title: str,
    note: str,
    chart: Markup,
    *,
    legend: Markup = NOTHING,
    numbers: Markup = NOTHING,
) -> Markup:
    """Return a chart with title, note and legend; empty without a chart.

    Args:
        title: Title of the figure.
        note: Text after the title.
        chart: The chart as SVG.
        legend: HTML of the legend.
        numbers: A table of the same numbers; it is put into a collapsed <details>.
    """
    if not chart:
        return NOTHING
    details = f"<details><summary>The numbers</summary>{numbers}</details>" if numbers else ""
    return Markup(
        f"<figure><figcaption><b>{escape(title)}</b>{escape(note)}</figcaption>"
        f"{chart}{legend}{details}</figure>"
    )


def figure_grid(*figures: Markup) -> Markup:
    """Return a responsive grid of figures; empty without figures."""
    drawn = "".join(figures)
    return Markup(f'<div class="charts">{drawn}</div>') if drawn else NOTHING


def section(name: str, title: str, *parts: Markup) -> Markup:
    """Return a section with an anchor; empty without content."""
    body = "".join(parts)
    anchor = escape(name, quote=True)
    if not body:
        return NOTHING
    return Markup(f'<section id="{anchor}"><h2>{escape(title)}</h2>{body}</section>')


def paragraph(text: str) -> Markup:
    """Return a paragraph of escaped text."""
    return Markup(f"<p>{escape(text)}</p>")


def difference_tag(value: float, *, good: bool, digits: int = 4) -> Markup:
    """Return a signed number, marked as better or worse."""
    if round(value, digits) == 0:
        return Markup(f'<span class="tag">{0:.{digits}f}</span>')
    return Markup(f'<span class="tag {"better" if good else "worse"}">{value:+.{digits}f}</span>')


def format_seconds(value: float) -> str:
    """Return a duration as text.

    >>> format_seconds(125)
    '2:05 min'
    """
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes}:{rest:02d} min"
