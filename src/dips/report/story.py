"""The story of one user as text and as a figure: sketches over time and entry gradients."""

from __future__ import annotations

import textwrap
import unicodedata
from pathlib import Path

from dips.evaluation.metrics import CUTOFF
from dips.evaluation.story import PredictionStep, Refresh, Story, item_gradient

SLIGHT, STRONG = 0.05, 0.5
"""Shares of the largest gradient: below the first an item hardly changed the loss, from the second
on it helped or hurt much."""
MIN_WIDTH, MAX_WIDTH = 80, 200
"""Characters of a line of text."""
MARKS = {2: "++", 1: "+", 0: ".", -1: "-", -2: "--"}
"""Mark of each gradient level: plus helped, minus hurt."""


def largest_gradient(story: Story) -> float:
    """Return the largest absolute entry gradient of the story."""
    cells = (item_gradient(step, item)[1] for step in story.steps for item in story.kept_items())
    return max(map(abs, cells), default=0.0)


def gradient_level(gradient: float, largest: float) -> int:
    """Return 2 (helped much), 1, 0 (little), -1 or -2 (hurt much); a negative gradient helps."""
    share = abs(gradient) / largest if largest else 0.0
    if share < SLIGHT:
        return 0
    size = 2 if share >= STRONG else 1
    return size if gradient < 0 else -size


def heading(story: Story) -> str:
    """Return a sentence with the user, the policy and the number of interactions shown."""
    part = f"{story.part} user" if story.part else "not in the run"
    policy = story.policy
    if story.run_policy != policy:
        policy = f"{policy} (baseline of a {story.run_policy} run, better on validation)"
    shown = len(story.steps)
    how = f"the last {shown} of {story.length}" if shown < story.length else f"all {story.length}"
    return (
        f"User {printable(story.user)} of {story.data} ({part}): {policy} keeps {story.size}, "
        f"refreshed every {', '.join(map(str, story.periods))}; {how} interactions"
    )


def outcome(step: PredictionStep, story: Story) -> str:
    """Return the outcome of a prediction in words."""
    if not story.explicit:
        place = f"rank {step.rank:g} of {story.items}"
        return f"{'hit' if step.hit else 'miss'}, {place}"
    return f"rated {step.rating:g}, predicted {step.estimate:.2f}, error {step.error:.2f}"


def most_helpful(step: PredictionStep, story: Story) -> str:
    """Return which sketch entry helped a prediction most, and which one hurt it most."""
    gradients = [
        (kept.entry_gradient, kept.item) for kept in step.kept if kept.entry_gradient is not None
    ]
    if not gradients:
        return ""
    best, worst = min(gradients), max(gradients)
    parts = [f"{story.item_name(best[1])} {best[0]:+.3f} helped most"] if best[0] < 0 else []
    if worst[0] > 0:
        parts.append(f"{story.item_name(worst[1])} {worst[0]:+.3f} hurt most")
    return "; ".join(parts)


def refresh_reason(refresh: Refresh, story: Story) -> str:
    """Return what a refresh dropped and kept, with the scores of all candidates."""
    ranked = sorted(refresh.candidates, key=lambda candidate: -candidate.score)
    named = [(f"{story.item_name(c.item)} ({format_score(c.score)})", c.stays) for c in ranked]
    gone = ", ".join(text for text, stays in named if not stays)
    kept = ", ".join(text for text, stays in named if stays)
    return f"after {refresh.seen}: dropped {gone}; kept {kept}"


def format_score(score: float) -> str:
    """Return a score with three digits, without negative zero."""
    return f"{round(score, 3) + 0.0:.3f}"


def printable(text: str) -> str:
    """Return the text without control characters, which could change a terminal."""
    return "".join("?" if unicodedata.category(c).startswith("C") else c for c in text)


def story_text(story: Story, width: int = 100) -> str:
    """Return the story as text; the oldest steps are left out if they do not fit.

    Args:
        story: The story of one user.
        width: Characters of a line, from 80 to 200.
    """
    width = min(max(width, MIN_WIDTH), MAX_WIDTH)
    column = 1 + max(len(str(story.length)), 3 if story.explicit else 2)
    named = min(32, width // 3)
    story = story.last(min(len(story.steps), (width - named) // column) or 1)
    lines = textwrap.wrap(heading(story), width)
    lines += ["", *_matrix(story, named, column), "", *textwrap.wrap(_legend(story), width)]
    lines += ["", "Predictions"]
    for step in story.steps:
        parts = [f"{step.t + 1}: {story.item_name(step.item)}", outcome(step, story)]
        lines += _wrapped("; ".join(filter(None, [*parts, most_helpful(step, story)])), width)
    gone = [refresh for refresh in story.refreshes if refresh.dropped]
    if gone:
        lines += ["", "Refreshes: the lowest scores are dropped"]
    for refresh in gone:
        lines += _wrapped(refresh_reason(refresh, story), width)
    return "\n".join(lines) + "\n"


def _matrix(story: Story, named: int, column: int) -> list[str]:
    """Return a line per sketch item, below the numbers and outcomes of the predictions."""
    largest = largest_gradient(story)

    def line(name: str, values: list[str]) -> str:
        shown = _short(name, named - 1)
        return (shown.ljust(named) + "".join(v.rjust(column) for v in values)).rstrip()

    if story.explicit:
        results = [f"{step.error:.1f}" for step in story.steps]
    else:
        results = ["yes" if step.hit else "no" for step in story.steps]
        results = [text[0] if column < 4 else text for text in results]
    lines = [
        line("interaction", [str(step.t + 1) for step in story.steps]),
        line("error" if story.explicit else f"in the top {CUTOFF}", results),
    ]
    for item in story.kept_items():
        found = [item_gradient(step, item) for step in story.steps]
        marks = [
            MARKS[gradient_level(gradient, largest)] if there else "" for there, gradient in found
        ]
        lines.append(line(story.item_name(item), marks))
    return lines


def _legend(story: Story) -> str:
    if not story.has_gradients:
        return ". kept; entry gradients are not known"
    return "kept, and: ++ helped much, + helped, . hardly changed it, - hurt, -- hurt much"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, initial_indent="  ", subsequent_indent="     ")


def draw_story(story: Story, path: Path, kind: str) -> None:
    """Draw the matrix of sketch items by predictions, coloured by entry gradient.

    Args:
        story: The story of one user.
        path: The file to write.
        kind: `png` or `svg`.
    """
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    rows, largest = story.kept_items(), largest_gradient(story) or 1.0
    columns = len(story.steps)
    figure = Figure(figsize=(4.6 + 0.34 * columns, 2.6 + 0.28 * len(rows)), layout="constrained")
    panel = figure.subplots()
    worst = max((step.error or 0.0 for step in story.steps), default=0.0) or 1.0
    for place, step in enumerate(story.steps):
        colour = "tab:blue" if step.hit else "tab:red"
        strength = 0.13
        if story.explicit:
            colour, strength = "tab:red", 0.04 + 0.26 * (step.error or 0.0) / worst
        panel.axvspan(place - 0.5, place + 0.5, color=colour, alpha=strength, linewidth=0)
    cells = [
        (place, row, gradient)
        for place, step in enumerate(story.steps)
        for row, item in enumerate(rows)
        for there, gradient in [item_gradient(step, item)]
        if there
    ]
    if cells:
        x, y, gradient = zip(*cells, strict=True)
        drawn = panel.scatter(
            x, y, c=gradient, s=90, marker="s", cmap="PRGn_r",
            norm=TwoSlopeNorm(0.0, -largest, largest), edgecolors="dimgray", linewidths=0.6,
        )  # fmt: skip
    if cells and story.has_gradients:
        bar = figure.colorbar(drawn, ax=panel, shrink=0.6, pad=0.02)
        bar.set_label("helped  ←  effect on the loss of this prediction  →  hurt")
    _label(panel, story, rows)
    figure.savefig(path, format=kind, dpi=130)


def _label(panel: object, story: Story, rows: list[str]) -> None:
    """Label both axes; item titles are text and never parsed as formulas."""
    from matplotlib.axes import Axes

    assert isinstance(panel, Axes)
    names = [_short(story.item_name(item)) for item in rows]
    panel.set_yticks(range(len(rows)), names, fontsize=8, parse_math=False)
    below = [f"{_short(story.item_name(step.item), 22)}  {step.t + 1}" for step in story.steps]
    panel.set_xticks(range(len(below)), below, rotation=90, fontsize=8, parse_math=False)
    panel.set_xlim(-0.5, len(below) - 0.5)
    panel.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)
    panel.set_ylabel("kept")
    shade = "shade: absolute error" if story.explicit else f"blue: in the top {CUTOFF}, red: not"
    panel.set_xlabel(f"predicted ({shade})")
    head = "\n".join(textwrap.wrap(heading(story), 88))
    panel.set_title(head, fontsize=9, loc="left", parse_math=False)


def _short(text: str, most: int = 34) -> str:
    """Shorten a name in the middle, because names often differ at their ends."""
    text = printable(text)
    end = (most - 1) // 3
    return text if len(text) <= most else f"{text[: most - 1 - end]}…{text[-end:]}"
