"""Small pieces of a page: tables, figures, sections. Text is escaped here, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Markup:
    """Text that is markup already."""

    html: str


Cell = str | Markup
"""What stands in a table: plain text, or markup."""


def shown(cell: Cell) -> str:
    """A cell as markup."""
    return cell.html if isinstance(cell, Markup) else escape(cell)


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str) -> str:
    """A table whose rows begin with their names; where it is too wide it scrolls by itself."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{shown(row[0])}</th>'
        + "".join(f"<td>{shown(cell)}</td>" for cell in row[1:])
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
    """A chart with its title, its legend, and the same numbers as a table to unfold."""
    if not chart:
        return ""
    unfold = f"<details><summary>The numbers</summary>{numbers}</details>" if numbers else ""
    return (
        f"<figure><figcaption><b>{escape(title)}</b>{escape(note)}</figcaption>"
        f"{chart}{key}{unfold}</figure>"
    )


def charts(*figures: str) -> str:
    """Figures side by side where there is room."""
    drawn = "".join(figures)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page with an anchor."""
    body = "".join(parts)
    anchor = escape(name, quote=True)
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{body}</section>' if body else ""


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def difference(value: float, *, good: bool, digits: int = 4) -> str:
    """A signed number, green where it is good and red where it is not."""
    if round(value, digits) == 0:
        return f'<span class="tag">{0:.{digits}f}</span>'
    return f'<span class="tag {"better" if good else "worse"}">{value:+.{digits}f}</span>'


def seconds(value: float) -> str:
    """A time for people."""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes}:{rest:02d} min"
