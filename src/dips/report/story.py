"""The story of one user as text and as a picture: kept items by time, and what they did."""

from __future__ import annotations

import textwrap
import unicodedata
from pathlib import Path

from dips.evaluation.metrics import CUTOFF
from dips.evaluation.story import Refresh, Step, Story, cell

SLIGHT, STRONG = 0.05, 0.5
"""Shares of the largest effect that is shown: below the first it is none, above the second much."""
NARROWEST, WIDEST = 80, 200
MARKS = {2: "++", 1: "+", 0: ".", -1: "-", -2: "--"}
"""How an effect looks by its `degree`: plus helped, minus hurt."""


def largest_effect(story: Story) -> float:
    """What effects are measured against."""
    cells = (cell(step, item)[1] for step in story.steps for item in story.rows())
    return max(map(abs, cells), default=0.0)


def degree(effect: float, largest: float) -> int:
    """2 helped much, 1 helped, 0 little, -1 hurt, -2 hurt much. A negative effect helps."""
    share = abs(effect) / largest if largest else 0.0
    if share < SLIGHT:
        return 0
    size = 2 if share >= STRONG else 1
    return size if effect < 0 else -size


def heading(story: Story) -> str:
    """One sentence: who, what policy, how much is shown."""
    part = f"{story.part} user" if story.part else "not in the run"
    who = story.policy
    if story.of != who:
        who = f"{who} (in a run of {story.of}, better on validation than what was learned)"
    shown = len(story.steps)
    how = f"the last {shown} of {story.length}" if shown < story.length else f"all {story.length}"
    return (
        f"User {plain(story.user)} of {story.data} ({part}): {who} keeps {story.size}, "
        f"refreshed every {', '.join(map(str, story.periods))}; {how} interactions"
    )


def outcome(step: Step, story: Story) -> str:
    """How a prediction went, in words."""
    if not story.explicit:
        place = f"rank {step.rank:g} of {story.items}"
        return f"{'hit' if step.hit else 'miss'}, {place}"
    return f"rated {step.rating:g}, predicted {step.estimate:.2f}, error {step.error:.2f}"


def helpers(step: Step, story: Story) -> str:
    """Which kept item helped a prediction most, and which one hurt it most."""
    told = [(kept.effect, kept.item) for kept in step.kept if kept.effect is not None]
    if not told:
        return ""
    best, worst = min(told), max(told)
    said = [f"{story.name(best[1])} {best[0]:+.3f} helped most"] if best[0] < 0 else []
    if worst[0] > 0:
        said.append(f"{story.name(worst[1])} {worst[0]:+.3f} hurt most")
    return "; ".join(said)


def why(refresh: Refresh, story: Story) -> str:
    """What was dropped at a refresh, and the scores of everything that could stay."""
    ranked = sorted(refresh.candidates, key=lambda candidate: -candidate.score)
    named = [(f"{story.name(c.item)} ({number(c.score)})", c.stays) for c in ranked]
    gone = ", ".join(text for text, stays in named if not stays)
    kept = ", ".join(text for text, stays in named if stays)
    return f"after {refresh.seen}: dropped {gone}; kept {kept}"


def number(score: float) -> str:
    """A score for people; nothing is minus nothing."""
    return f"{round(score, 3) + 0.0:.3f}"


def plain(text: str) -> str:
    """Without characters that move a terminal's cursor or change its colours."""
    return "".join("?" if unicodedata.category(c).startswith("C") else c for c in text)


def story_text(story: Story, width: int = 100) -> str:
    """The whole story, in lines that fit; earlier steps are left out where they do not."""
    width = min(max(width, NARROWEST), WIDEST)
    column = 1 + max(len(str(story.length)), 3 if story.explicit else 2)
    named = min(32, width // 3)
    story = story.last(min(len(story.steps), (width - named) // column) or 1)
    lines = textwrap.wrap(heading(story), width)
    lines += ["", *_matrix(story, named, column), "", *textwrap.wrap(_legend(story), width)]
    lines += ["", "What was predicted"]
    for step in story.steps:
        told = [f"{step.t + 1}: {story.name(step.item)}", outcome(step, story)]
        lines += _wrapped("; ".join(filter(None, [*told, helpers(step, story)])), width)
    gone = [refresh for refresh in story.refreshes if refresh.dropped]
    if gone:
        lines += ["", "What was dropped, and why: the lowest scores go"]
    for refresh in gone:
        lines += _wrapped(why(refresh, story), width)
    return "\n".join(lines) + "\n"


def _matrix(story: Story, named: int, column: int) -> list[str]:
    """A line per kept item, under the numbers of the predictions and how they went."""
    largest = largest_effect(story)

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
    for item in story.rows():
        found = [cell(step, item) for step in story.steps]
        marks = [MARKS[degree(effect, largest)] if there else "" for there, effect in found]
        lines.append(line(story.name(item), marks))
    return lines


def _legend(story: Story) -> str:
    if not story.is_known:
        return ". kept; this recommender has no inner loop, so what helped is not known"
    return "kept, and: ++ helped much, + helped, . hardly changed it, - hurt, -- hurt much"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(plain(text), width, initial_indent="  ", subsequent_indent="     ")


def draw_story(story: Story, path: Path, kind: str) -> None:
    """The matrix as a picture (kind png or svg): columns by outcome, cells by effect."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    rows, largest = story.rows(), largest_effect(story) or 1.0
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
        (place, row, effect)
        for place, step in enumerate(story.steps)
        for row, item in enumerate(rows)
        for there, effect in [cell(step, item)]
        if there
    ]
    if cells:
        x, y, effect = zip(*cells, strict=True)
        drawn = panel.scatter(
            x, y, c=effect, s=90, marker="s", cmap="PRGn_r",
            norm=TwoSlopeNorm(0.0, -largest, largest), edgecolors="dimgray", linewidths=0.6,
        )  # fmt: skip
    if cells and story.is_known:
        bar = figure.colorbar(drawn, ax=panel, shrink=0.6, pad=0.02)
        bar.set_label("helped  ←  effect on the loss of this prediction  →  hurt")
    _label(panel, story, rows)
    figure.savefig(path, format=kind, dpi=130)


def _label(panel: object, story: Story, rows: list[str]) -> None:
    """Names on both axes; a title of anyone's is text, never a formula."""
    from matplotlib.axes import Axes

    assert isinstance(panel, Axes)
    names = [_short(story.name(item)) for item in rows]
    panel.set_yticks(range(len(rows)), names, fontsize=8, parse_math=False)
    below = [f"{_short(story.name(step.item), 22)}  {step.t + 1}" for step in story.steps]
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
    """Cut in the middle: names often begin alike, and differ at their ends."""
    text = plain(text)
    end = (most - 1) // 3
    return text if len(text) <= most else f"{text[: most - 1 - end]}…{text[-end:]}"
