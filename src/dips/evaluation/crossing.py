"""Score every recommender with every policy's sketches, and attribute the difference to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dips.errors import ConfigError
from dips.evaluation.comparison import Cell, UserSums, compare_pairs
from dips.evaluation.progressive import Scores, evaluate
from dips.evaluation.transfer import SourcePolicy
from dips.model.trained_model import TrainedModel
from dips.recommender.stacked import StackedRecommenders
from dips.rollout.trace import StoredTrace, Trace
from dips.stream.users import Stream

Combination = tuple[str, str]
"""Names of the recommender that predicts and of the policy whose sketches it reads."""


def source_sketches(source_policy: SourcePolicy, stream: Stream) -> StoredTrace:
    """Return the sketches that a policy keeps of the users of a stream.

    Raises:
        ConfigError: If the policy keeps everything: it has no sketches.
    """
    trace = source_policy.roll_out(stream)
    if not isinstance(trace, StoredTrace):
        raise ConfigError(f"the policy '{source_policy.name}' keeps everything: it has no sketches")
    return trace


def score_sketches(target: TrainedModel, trace: Trace) -> Scores:
    """Score the predictions that a model's recommender makes from the sketches of a trace."""
    stack = StackedRecommenders.of([target.recommender], trace.event.device)
    return evaluate(stack, trace, low=target.spec.low, high=target.spec.high)[0]


def cross_scores(
    targets: Mapping[str, TrainedModel], policies: Mapping[str, SourcePolicy], stream: Stream
) -> dict[Combination, Scores]:
    """Score every recommender with the sketches of every policy, for the users of one stream.

    Args:
        targets: Models whose recommenders predict, by name.
        policies: Policies whose sketches are read, by name.
        stream: Users of one run.

    Returns:
        Scores by (recommender, policy).
    """
    return cross_traces(
        targets, {name: source_sketches(policy, stream) for name, policy in policies.items()}
    )


def cross_traces(
    targets: Mapping[str, TrainedModel], traces: Mapping[str, StoredTrace]
) -> dict[Combination, Scores]:
    """Score every recommender with every trace of sketches, by (recommender, policy)."""
    return {
        (target, policy): score_sketches(trained, trace)
        for target, trained in targets.items()
        for policy, trace in traces.items()
    }


def paired_effects(
    found: Mapping[Combination, Sequence[UserSums]], first: str, second: str
) -> list[dict[str, Any]]:
    """Return the effect of changing sketches or recommender from the first to the second model.

    Args:
        found: Sums by user of the four combinations of `first` and `second`, one entry per split.
        first: Name of the first model and policy.
        second: Name of the second model and policy.

    Returns:
        One row per change and metric: `changed`, `while` (what is fixed), and the difference second
        minus first with its 95 % interval from a paired bootstrap over users.
    """
    order = [(second, second), (second, first), (first, second), (first, first)]
    cells = {pair: Cell(f"{pair[0]}/{pair[1]}", 0, 0) for pair in order}
    rows = compare_pairs({cells[pair]: found[pair] for pair in order})
    changes = {
        ("sketches", f"recommender of {first}"): ((first, second), (first, first)),
        ("sketches", f"recommender of {second}"): ((second, second), (second, first)),
        ("recommender", f"sketches of {first}"): ((second, first), (first, first)),
        ("recommender", f"sketches of {second}"): ((second, second), (first, second)),
        ("both", ""): ((second, second), (first, first)),
    }
    return [
        {"changed": changed, "while": fixed}
        | {name: row[name] for name in ("metric", "diff", "low", "high", "p")}
        for (changed, fixed), (a, b) in changes.items()
        for row in rows
        if (row["a"], row["b"]) == (cells[a].policy, cells[b].policy)
    ]


def effect_shares(effects: Sequence[Mapping[str, Any]], metric: str) -> dict[str, float]:
    """Return the parts of a metric's difference: sketches, recommender and both.

    Each part is the mean over both orders of changing sketches and recommender (its Shapley
    value).
    """
    rows = [row for row in effects if row["metric"] == metric]
    return {
        changed: float(np.mean([row["diff"] for row in rows if row["changed"] == changed]))
        for changed in ("sketches", "recommender", "both")
    }
