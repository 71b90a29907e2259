"""Figures as PNG files, from plain rows. Knows nothing about training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LINES = ("-", "--", ":", "-.")
MAX_INSIDE = 6
"""Most policies whose legend fits inside the panel."""
SHARES = {"preserved": "tab:green", "negated": "tab:red", "zeroed": "lightgray"}
"""Colour of each outcome of a gradient entry."""


def training_curve(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw training loss and validation score by epoch.

    Args:
        history: Lines of log.jsonl: `epoch`, `train_loss`, `valid`, optionally `baseline`.
        path: The PNG file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    left = figure.subplots()
    epochs = [line["epoch"] for line in history]
    first = left.plot(epochs, [line["train_loss"] for line in history], label="training loss")
    left.set_xlabel("epoch")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylabel("training loss")
    right = left.twinx()
    scores = [abs(line["valid"]) for line in history]
    second = right.plot(epochs, scores, color="tab:orange", marker="o", label="validation")
    known = [line for line in history if "baseline" in line]
    if known:
        baseline = [abs(line["baseline"]) for line in known]
        epochs = [line["epoch"] for line in known]
        second += right.plot(epochs, baseline, color="tab:gray", marker=".", label="best baseline")
    right.set_ylabel(f"validation {history[0].get('metric', '')}".strip())
    figure.legend(handles=[*first, *second], loc="outside upper center", ncols=3)
    figure.savefig(path, format="png", dpi=120)


def quality_by_size(
    summary: Sequence[Mapping[str, Any]],
    metric: str,
    path: Path,
    levels: Sequence[str] = (),
    marks: Sequence[Mapping[str, Any]] = (),
    note: str = "mean, std over splits",
) -> None:
    """Draw the mean metric by sketch size, one line per policy and one panel per period.

    Args:
        summary: Rows with `policy`, `size`, `every`, `metric`, `mean` and `std`.
        metric: The metric to draw.
        path: The PNG file.
        levels: Policies without a size, drawn as horizontal lines.
        marks: Rows of published means, drawn as crosses in the colour of the policy.
        note: Title of the legend.
    """
    from matplotlib.figure import Figure

    found = [row for row in summary if row["metric"] == metric]
    rows = [row for row in found if row["policy"] not in levels]
    periods = sorted({row["every"] for row in rows})
    figure = Figure(figsize=(5.2 * len(periods), 3.8), layout="constrained")
    panels = figure.subplots(1, len(periods), sharey=True, squeeze=False)[0]
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    for panel, period in zip(panels, periods, strict=True):
        for place, policy in enumerate(policies):
            points = sorted(
                (row["size"], row["mean"], row["std"])
                for row in rows
                if row["policy"] == policy and row["every"] == period
            )
            if not points:
                continue
            size, mean, std = zip(*points, strict=True)
            style = LINES[(place // 10) % len(LINES)]
            drawn = panel.errorbar(
                size, mean, std, marker="o", capsize=3, linestyle=style, label=policy
            )
            others = [m for m in marks if (m["policy"], m["every"]) == (policy, period)]
            published = [m["size"] for m in others], [m["mean"] for m in others]
            panel.plot(*published, linestyle="", marker="x", color=drawn[0].get_color())
        for row in found:
            if row["policy"] in levels:
                panel.axhline(row["mean"], color="tab:gray", linestyle="--", label=row["policy"])
        panel.set_xscale("log", base=2)
        panel.set_xticks(sorted({row["size"] for row in rows}))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlabel("sketch size K")
        panel.set_title("online" if period == 1 else f"refreshed every {period}")
        panel.grid(alpha=0.3)
    better = "lower" if metric in ("rmse", "logloss") else "higher"
    panels[0].set_ylabel(f"test {metric} ({better} is better)")
    outside = len(policies) > MAX_INSIDE
    keys = panels[-1].get_legend_handles_labels()
    if outside:
        figure.legend(*keys, loc="outside right upper", title=note)
    else:
        panels[-1].legend(*keys, loc="best", title=note)
    figure.savefig(path, format="png", dpi=120)


def gradient_shares(
    ours: Mapping[str, Mapping[str, float]], paper: Mapping[str, Mapping[str, float]], path: Path
) -> None:
    """Draw stacked bars of the sign of non-zero true gradient entries, by method.

    Args:
        ours: Shares of `preserved`, `negated` and `zeroed` entries by method.
        paper: The shares that the paper reports, by method.
        path: The PNG file.
    """
    from matplotlib.figure import Figure

    bars = [(f"{name}\n{who}", found[name]) for name in ours
            for who, found in (("here", ours), ("paper, ML-1M", paper))]  # fmt: skip
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    panel = figure.subplots()
    below = [0.0] * len(bars)
    for part, colour in SHARES.items():
        heights = [100 * shares[part] for _, shares in bars]
        drawn = panel.bar(
            [label for label, _ in bars], heights, 0.6, below, color=colour, label=part
        )
        panel.bar_label(drawn, [f"{h:.0f}" if h >= 4 else "" for h in heights], label_type="center")
        below = [low + height for low, height in zip(below, heights, strict=True)]
    panel.set_ylabel("% of the non-zero entries")
    panel.set_title("signs of the true policy gradient")
    panel.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, format="png", dpi=120)
