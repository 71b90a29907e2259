"""Cards at the top of the report: which policy is best, and sizes at equal quality.

All cards of a comparison are about one sketch size and one refresh period, so that no policy is
better on one card and worse on the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dips.evaluation.comparison import BEST_RULE
from dips.evaluation.metrics import primary_metric
from dips.evaluation.verdict import count_kept_policies
from dips.report.paper_tables import USERS
from dips.report.quality import (
    WITHOUT_SIZE,
    best_value,
    equal_quality_sentence,
    is_not_significant,
    periods,
    policy_names,
    select_rows,
)
from dips.report.results import Comparison, Experiment, Results, Row

FEWER = 0.9
"""Below this share of the paper's users, a comparison with the paper says so."""
Card = tuple[str, str]
"""Statement, and what it holds for."""


def cards(results: Results) -> str:
    """Return the key results as an HTML list; empty without comparisons and experiments."""
    found: list[Card] = []
    for comparison in results.comparisons:
        found += comparison_cards(comparison, f"on {data_name(comparison, results)}")
    for experiment in results.experiments:
        found += experiment_cards(experiment)
    shown = "".join(f"<li><b>{escape(a)}</b><span>{escape(b)}</span></li>" for a, b in found)
    return f'<ul class="cards">{shown}</ul>' if shown else ""


def data_name(found: Comparison, results: Results) -> str:
    """Return the name of the data, with the directory if several comparisons share it."""
    several = sum(other.data == found.data for other in results.comparisons) > 1
    return f"{found.data} ({found.name})" if several else found.data


def metrics_of(summary: Sequence[Row]) -> list[str]:
    """Return the metrics to show: the primary one, and at most one more."""
    names = list(dict.fromkeys(row["metric"] for row in summary))
    first = primary_metric(dict.fromkeys(names, 0.0))
    return [first, *(name for name in names if name != first)][:2]


def rows_at_middle_size(summary: Sequence[Row], metric: str) -> list[Mapping[str, Any]]:
    """Return the rows of all policies with a sketch, at one size and the shortest period.

    It is the middle one of the sizes that most policies have.
    """
    rows = select_rows(summary, metric, periods(summary)[0])
    found = [row for row in rows if row["policy"] not in (*WITHOUT_SIZE, BEST_RULE)] or rows
    found = [row for row in found if row["size"] > 0] or found
    sizes = [row["size"] for row in found]
    most = max(sizes.count(size) for size in sizes)
    common = sorted({size for size in sizes if sizes.count(size) == most})
    return [row for row in found if row["size"] == common[len(common) // 2]]


def best_at_middle_size(summary: Sequence[Row], metric: str) -> Mapping[str, Any]:
    """Return the row of the best policy at the middle size and the shortest period."""
    middle = rows_at_middle_size(summary, metric)
    best = best_value([row["mean"] for row in middle], metric)
    return next(row for row in middle if row["mean"] == best)


def reference_policy(summary: Sequence[Row], metric: str) -> str:
    """Return the policy that others are compared with: `learned`, or else the best."""
    if "learned" in policy_names(rows_at_middle_size(summary, metric)):
        return "learned"
    return str(best_at_middle_size(summary, metric)["policy"])


def fewer_users(found: Comparison) -> str:
    """Return '300 users, the paper has 6,000'; empty if there are as many, or none are known."""
    here = [run.metrics["users"] for run in found.runs if "users" in run.metrics]
    published = USERS.get(found.data)
    if not here or published is None or min(here) >= FEWER * published:
        return ""
    return f"{min(here):,} users, the paper has {published:,}"


def comparison_cards(found: Comparison, where: str) -> list[Card]:
    """Return the best policy, how far `learned` is behind it, and sizes at equal quality."""
    metric, every = metrics_of(found.summary)[0], periods(found.summary)[0]
    best = best_at_middle_size(found.summary, metric)
    policy, size = str(best["policy"]), best["size"]
    text = f"best {metric} {where} at K = {size}: {best['mean']:.4f}"
    similar = [
        other
        for other in policy_names(found.summary)
        if other not in WITHOUT_SIZE
        and is_not_significant(found.paired, metric, (size, every), {policy, other})
    ]
    notes = [f"not significant against {', '.join(similar)}"] if similar else []
    notes += [few] if (few := fewer_users(found)) else []
    first = policy + _kept_policies(found.rows, policy, size, every)
    return [
        (first, "; ".join([text, *notes])),
        *_behind_cards(found, metric, where),
        *_equal_quality_cards(found, metric, where),
    ]


def experiment_cards(found: Experiment) -> list[Card]:
    """Return sizes at equal quality."""
    metric = metrics_of(found.summary)[0]
    return _equal_quality_cards(found, metric, f"in the {found.kind} experiment")


def _behind_cards(found: Comparison, metric: str, where: str) -> list[Card]:
    """Return by how much `learned` is behind the best policy, if it is."""
    every, rows = periods(found.summary)[0], rows_at_middle_size(found.summary, metric)
    mean = {row["policy"]: row["mean"] for row in rows}
    best, size = best_at_middle_size(found.summary, metric)["policy"], rows[0]["size"]
    if best == "learned" or "learned" not in mean:
        return []
    share = abs(mean["learned"] / mean[best] - 1)
    doubt = is_not_significant(found.paired, metric, (size, every), {"learned", best})
    return [
        (
            f"learned is {share:.1%} behind {best}".replace("%", " %")
            + _kept_policies(found.rows, "learned", size, every),
            f"by {metric} {where} at K = {size}" + ("; not significant" if doubt else ""),
        )
    ]


def _equal_quality_cards(found: Comparison | Experiment, metric: str, where: str) -> list[Card]:
    """Return sizes at equal quality against `last` and `reservoir`."""
    summary, every = found.summary, periods(found.summary)[0]
    of, size = reference_policy(summary, metric), best_at_middle_size(summary, metric)["size"]
    listed = []
    for to in ("last", "reservoir"):
        cell = (of, size)
        text = equal_quality_sentence(summary, metric, every, cell, to) if to != of else ""
        chance = is_not_significant(found.paired, metric, (size, every), {of, to})
        if text:
            kept = _kept_policies(found.rows, of, size, every)
            doubt = "; the difference is not significant" if chance else ""
            listed.append((text + kept, f"by {metric} {where}{doubt}"))
    return listed


def _kept_policies(rows: Sequence[Row], policy: str, size: int, every: int) -> str:
    """Return the policies that the runs of a cell kept, if they differ from the asked one."""
    cell = [row for row in rows if (row["size"], row.get("every", every)) == (size, every)]
    names = sorted(count_kept_policies(cell, policy))
    return "" if names in ([], [policy]) else f" (chosen by {', '.join(names)})"
