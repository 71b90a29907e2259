"""The story of one user as a page: a matrix to walk through, by pointer or by keys."""

from __future__ import annotations

from html import escape

from dips.evaluation.metrics import CUTOFF
from dips.evaluation.story import Refresh, Step, Story, cell
from dips.report.page import asset, page
from dips.report.story import degree, heading, largest_effect, number, outcome

MARKS = {2: "++", 1: "+", 0: "·", -1: "−", -2: "−−"}  # noqa: RUF001 (a real minus is as wide as a plus)
DEGREES = {2: "helped much", 1: "helped", 0: "hardly changed it", -1: "hurt", -2: "hurt much"}


def story_page(story: Story) -> str:
    """One self-contained page."""
    title = f"The story of user {story.user}"
    largest = largest_effect(story)
    body = f"""<header>
<h1>{escape(title)}</h1>
<p class="lede">{escape(heading(story))}.</p>
{_legend(story)}
</header>
<main id="main">
<div class="stage">
<div class="scroll matrix">{_matrix(story, largest)}</div>
<section class="panel" aria-label="What happened here">
<div id="panel" class="told" aria-live="polite">
<p>Choose a cell: by pointer, or with Tab and the arrow keys.</p></div></section>
</div>
<details><summary>All predictions in words</summary>
<ol class="all">{"".join(_told(step, story) for step in story.steps)}</ol></details>
</main>"""
    return page(title, body, style=asset("story.css"), script=asset("story.js"))


def _legend(story: Story) -> str:
    outcome = (
        "columns are shaded by the error of the rating"
        if story.explicit
        else f"blue columns were hits in the top {CUTOFF}, red ones were not"
    )
    marks = (
        "A cell says what the item's weight did to the loss of that prediction: "
        "<b>++</b> helped much, <b>+</b> helped, <b>·</b> hardly changed it, "
        f"<b>{MARKS[-1]}</b> hurt, <b>{MARKS[-2]}</b> hurt much."
        if story.is_known
        else "<b>·</b> kept; this recommender has no inner loop, so what helped is not known."
    )
    return f"<p class='soft'>Rows are kept items, columns predictions; {outcome}. {marks}</p>"


def _matrix(story: Story, largest: float) -> str:
    worst = max((step.error or 0.0 for step in story.steps), default=0.0) or 1.0
    heads = "".join(_head(step, story, worst) for step in story.steps)
    rows = "".join(_row(item, story, largest, worst) for item in story.rows())
    label = escape(f"What was kept of user {story.user}, by prediction", quote=True)
    return (
        f'<table role="grid" aria-label="{label}">'
        f'<thead><tr><th scope="col">kept</th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _head(step: Step, story: Story, worst: float) -> str:
    said = f"Prediction {step.t + 1}: {story.name(step.item)}; {outcome(step, story)}"
    short = f"{step.error:.1f}" if story.explicit else ("hit" if step.hit else "–")  # noqa: RUF001
    return (
        f'<th scope="col" {_place(step, said)} {_shade(step, story, worst)}>'
        f"{step.t + 1}<small>{short}</small></th>"
    )


def _row(item: str, story: Story, largest: float, worst: float) -> str:
    name = story.name(item)
    cells = []
    for step in story.steps:
        there, effect = cell(step, item)
        shade = _shade(step, story, worst)
        if not there:
            cells.append(f"<td {_place(step, f'{name}: not kept at {step.t + 1}')} {shade}></td>")
            continue
        known = any(kept.effect is not None for kept in step.kept)
        size = degree(effect, largest)
        told = f"{DEGREES[size]} ({effect:+.3f})" if known else "kept"
        said = f"{name}, kept for prediction {step.t + 1}: {told}"
        shade = shade.replace('class="', f'class="d{size} ')
        cells.append(f"<td {_place(step, said)} {shade}><span>{MARKS[size]}</span></td>")
    shown = escape(name, quote=True)
    return f'<tr><th scope="row" title="{shown}">{shown}</th>{"".join(cells)}</tr>'


def _place(step: Step, said: str) -> str:
    """What makes a cell part of the walk: its step, a label, and a place among the keys."""
    return f'data-step="step-{step.t}" tabindex="-1" aria-label="{escape(said, quote=True)}"'


def _shade(step: Step, story: Story, worst: float) -> str:
    if not story.explicit:
        return f'class="{"hit" if step.hit else "miss"}"'
    return f'class="error" style="--share:{(step.error or 0.0) / worst:.2f}"'


def _told(step: Step, story: Story) -> str:
    """A prediction in words: how it went, what it was made from, and the choice before it."""
    kept = "".join(
        f"<li><span>{escape(story.name(kept.item))}</span><span>{_effect(kept.effect)}</span></li>"
        for kept in sorted(step.kept, key=lambda kept: kept.effect or 0.0)
    )
    refresh = story.refresh_before(step.t)
    sources = f"<h4>Made from (effect on its loss; below 0 helped)</h4><ul>{kept}</ul>"
    return (
        f'<li class="told" id="step-{step.t}">'
        f"<h3>{step.t + 1}: {escape(story.name(step.item))}</h3>"
        f"<p>{escape(outcome(step, story))}</p>"
        f"{sources if kept else '<p>Nothing was known yet.</p>'}"
        f"{_choice(refresh, story) if refresh else ''}</li>"
    )


def _effect(effect: float | None) -> str:
    if effect is None:
        return "not known"
    side = "better" if effect < 0 else "worse" if effect > 0 else "soft"
    return f'<span class="{side}">{effect:+.3f}</span>'


def _choice(refresh: Refresh, story: Story) -> str:
    rows = "".join(
        f'<li><span class="{"" if candidate.stays else "gone"}">'
        f"{escape(story.name(candidate.item))}</span>"
        f"<span>{number(candidate.score)}{'' if candidate.stays else ', dropped'}</span></li>"
        for candidate in sorted(refresh.candidates, key=lambda candidate: -candidate.score)
    )
    return f"<h4>Chosen right before it (scores: the highest stay)</h4><ul>{rows}</ul>"
