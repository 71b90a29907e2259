"""HTML elements of a page: tables, figures, sections. Text is escaped here, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Markup:
    """HTML that is not escaped again."""

    html: str


Cell = str | Markup
"""Content of a table cell: plain text or markup."""


def to_html(cell: Cell) -> str:
    """Return a cell as HTML; plain text is escaped."""
    return cell.html if isinstance(cell, Markup) else escape(cell)


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str) -> str:
    """Return a table; the first cell of each row is its header. A wide table scrolls."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{to_html(row[0])}</th>'
        + "".join(f"<td>{to_html(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    return (
        f'<div class="box"><p class="caption">{escape(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table aria-label="{label}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></div>"
    )


def figure(title: str, note: str, chart: str, *, key: str = "", numbers: str = "") -> str:
    """Return a chart with title, note and legend; empty without a chart.

    Args:
        title: Title of the figure.
        note: Text after the title.
        chart: SVG markup.
        key: Markup of the legend.
        numbers: A table of the same numbers, folded.
    """
    if not chart:
        return ""
    unfold = f"<details><summary>The numbers</summary>{numbers}</details>" if numbers else ""
    return (
        f"<figure><figcaption><b>{escape(title)}</b>{escape(note)}</figcaption>"
        f"{chart}{key}{unfold}</figure>"
    )


def figure_grid(*figures: str) -> str:
    """Return a responsive grid of figures; empty without figures."""
    drawn = "".join(figures)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def section(name: str, title: str, *parts: str) -> str:
    """Return a section with an anchor; empty without content."""
    body = "".join(parts)
    anchor = escape(name, quote=True)
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{body}</section>' if body else ""


def paragraph(text: str) -> str:
    """Return a paragraph of escaped text."""
    return f"<p>{escape(text)}</p>"


def difference_tag(value: float, *, good: bool, digits: int = 4) -> str:
    """Return a signed number, marked as better or worse."""
    if round(value, digits) == 0:
        return f'<span class="tag">{0:.{digits}f}</span>'
    return f'<span class="tag {"better" if good else "worse"}">{value:+.{digits}f}</span>'


def format_seconds(value: float) -> str:
    """Return a duration as text.

    >>> format_seconds(125)
    '2:05 min'
    """
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes}:{rest:02d} min"
