"""The story of one user as a page: a matrix that is explored by pointer or keys."""

from __future__ import annotations

from html import escape

from dips.evaluation.metrics import CUTOFF
from dips.evaluation.story import PredictionStep, Refresh, Story, item_gradient
from dips.report.page import asset, page
from dips.report.story import format_score, gradient_level, heading, largest_gradient, outcome

MARKS = {2: "++", 1: "+", 0: "·", -1: "−", -2: "−−"}  # noqa: RUF001 (a real minus is as wide as a plus)
LEVELS = {2: "helped much", 1: "helped", 0: "hardly changed it", -1: "hurt", -2: "hurt much"}


def story_page(story: Story) -> str:
    """Return the story of one user as one self-contained page."""
    title = f"The story of user {story.user}"
    largest = largest_gradient(story)
    body = f"""<header>
<h1>{escape(title)}</h1>
<p class="summary">{escape(heading(story))}.</p>
{_legend(story)}
</header>
<main id="main">
<div class="stage">
<div class="scroll matrix">{_matrix(story, largest)}</div>
<section class="panel" aria-label="Details of the cell">
<div id="panel" class="step" aria-live="polite">
<p>Choose a cell: by pointer, or with Tab and the arrow keys.</p></div></section>
</div>
<details><summary>All predictions in words</summary>
<ol class="all">{"".join(_step_details(step, story) for step in story.steps)}</ol></details>
</main>"""
    return page(title, body, style=asset("story.css"), script=asset("story.js"))


def _legend(story: Story) -> str:
    outcome = (
        "columns are shaded by the error of the rating"
        if story.explicit
        else f"blue columns were hits in the top {CUTOFF}, red ones were not"
    )
    marks = (
        "A cell shows the effect of the item's weight on the loss of that prediction: "
        "<b>++</b> helped much, <b>+</b> helped, <b>·</b> hardly changed it, "
        f"<b>{MARKS[-1]}</b> hurt, <b>{MARKS[-2]}</b> hurt much."
        if story.has_gradients
        else "<b>·</b> kept; entry gradients are not known."
    )
    return f"<p class='soft'>Rows are kept items, columns predictions; {outcome}. {marks}</p>"


def _matrix(story: Story, largest: float) -> str:
    worst = max((step.error or 0.0 for step in story.steps), default=0.0) or 1.0
    heads = "".join(_head(step, story, worst) for step in story.steps)
    rows = "".join(_row(item, story, largest, worst) for item in story.kept_items())
    label = escape(f"Sketch items of user {story.user}, by prediction", quote=True)
    return (
        f'<table role="grid" aria-label="{label}">'
        f'<thead><tr><th scope="col">kept</th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _head(step: PredictionStep, story: Story, worst: float) -> str:
    label = f"Prediction {step.t + 1}: {story.item_name(step.item)}; {outcome(step, story)}"
    short = f"{step.error:.1f}" if story.explicit else ("hit" if step.hit else "–")  # noqa: RUF001
    return (
        f'<th scope="col" {_cell(step, label)} {_shade(step, story, worst)}>'
        f"{step.t + 1}<small>{short}</small></th>"
    )


def _row(item: str, story: Story, largest: float, worst: float) -> str:
    name = story.item_name(item)
    cells = []
    for step in story.steps:
        there, gradient = item_gradient(step, item)
        shade = _shade(step, story, worst)
        if not there:
            cells.append(f"<td {_cell(step, f'{name}: not kept at {step.t + 1}')} {shade}></td>")
            continue
        known = any(kept.entry_gradient is not None for kept in step.kept)
        size = gradient_level(gradient, largest)
        level_text = f"{LEVELS[size]} ({gradient:+.3f})" if known else "kept"
        label = f"{name}, kept for prediction {step.t + 1}: {level_text}"
        shade = shade.replace('class="', f'class="d{size} ')
        cells.append(f"<td {_cell(step, label)} {shade}><span>{MARKS[size]}</span></td>")
    shown = escape(name, quote=True)
    return f'<tr><th scope="row" title="{shown}">{shown}</th>{"".join(cells)}</tr>'


def _cell(step: PredictionStep, label: str) -> str:
    """Return the attributes of a cell: its step, an accessible label and keyboard focus."""
    return f'data-step="step-{step.t}" tabindex="-1" aria-label="{escape(label, quote=True)}"'


def _shade(step: PredictionStep, story: Story, worst: float) -> str:
    if not story.explicit:
        return f'class="{"hit" if step.hit else "miss"}"'
    return f'class="error" style="--share:{(step.error or 0.0) / worst:.2f}"'


def _step_details(step: PredictionStep, story: Story) -> str:
    """Return a prediction in words: its outcome, the sketch, and the refresh before it."""
    kept = "".join(
        f"<li><span>{escape(story.item_name(kept.item))}</span><span>{_gradient(kept.entry_gradient)}</span></li>"
        for kept in sorted(step.kept, key=lambda kept: kept.entry_gradient or 0.0)
    )
    refresh = story.refresh_before(step.t)
    sources = f"<h4>Sketch (gradient of the loss; below 0 helped)</h4><ul>{kept}</ul>"
    return (
        f'<li class="step" id="step-{step.t}">'
        f"<h3>{step.t + 1}: {escape(story.item_name(step.item))}</h3>"
        f"<p>{escape(outcome(step, story))}</p>"
        f"{sources if kept else '<p>The sketch was empty.</p>'}"
        f"{_refresh(refresh, story) if refresh else ''}</li>"
    )


def _gradient(gradient: float | None) -> str:
    if gradient is None:
        return "no gradient"
    side = "better" if gradient < 0 else "worse" if gradient > 0 else "soft"
    return f'<span class="{side}">{gradient:+.3f}</span>'


def _refresh(refresh: Refresh, story: Story) -> str:
    rows = "".join(
        f'<li><span class="{"" if candidate.stays else "gone"}">'
        f"{escape(story.item_name(candidate.item))}</span>"
        f"<span>{format_score(candidate.score)}{'' if candidate.stays else ', dropped'}</span></li>"
        for candidate in sorted(refresh.candidates, key=lambda candidate: -candidate.score)
    )
    return f"<h4>Refresh before it (the highest scores stay)</h4><ul>{rows}</ul>"
